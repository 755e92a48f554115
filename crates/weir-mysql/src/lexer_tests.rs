use super::*;

fn tokens(text: &str) -> String {
    with(text, SqlDialect::default())
}

/// Formats tokens as text: words bare, names in `[]`, strings in `<>`, numbers with `n`, others by their
/// characters.
fn with(text: &str, dialect: SqlDialect) -> String {
    let show = |token| {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        match token {
            SqlToken::Word(word) => text(word),
            SqlToken::Member(word) => format!("m{}", text(word)),
            SqlToken::Name(name) => format!("[{}]", text(name)),
            SqlToken::Text(content) => format!("<{}>", text(content)),
            SqlToken::Number(digits) => format!("n{}", text(digits)),
            SqlToken::UserVariable(name) => format!("@{}", text(name)),
            SqlToken::SystemVariable(name) => format!("@@{}", text(name)),
            SqlToken::Parameter => "?".to_owned(),
            SqlToken::Assign => ":=".to_owned(),
            SqlToken::Open => "(".to_owned(),
            SqlToken::Close => ")".to_owned(),
            SqlToken::Comma => ",".to_owned(),
            SqlToken::Dot => ".".to_owned(),
            SqlToken::Semicolon => ";".to_owned(),
            SqlToken::Symbol(byte) => char::from(byte).to_string(),
            SqlToken::Irregular(why) => format!("!{why:?}"),
        }
    };
    Lexer::new(text.as_bytes(), dialect).map(show).collect::<Vec<_>>().join(" ")
}

#[test]
fn tokens_are_those_of_the_server() {
    for (text, expected) in [
        ("SELECT a,b FROM `t x`", "SELECT a , b FROM [t x]"),
        ("'it''s' 'a\\'b' \"x\"\"y\"", "<it''s> <a\\'b> <x\"\"y>"),
        ("`a``b`", "[a``b]"),
        ("a.b.c", "a . mb . mc"),
        ("a . b", "a . b"),
        ("t.select", "t . mselect"),
        ("t.1e5", "t . m1e5"),
        ("db.1abs(1)", "db . m1abs ( n1 )"),
        ("1.5 .5 1. 1e5 1E-3 0x1F 0b01 007", "n1.5 n.5 n1. n1e5 n1E-3 n0x1F n0b01 n007"),
        ("1abc 0X1 0xg 1e 1ex 0b2", "1abc 0X1 0xg 1e 1ex 0b2"),
        ("1.5FROM", "n1.5 FROM"),
        ("a--1", "a - - n1"),
        ("a-- 1", "a"),
        ("a--\n1", "a n1"),
        ("a # b\nc", "a c"),
        ("a /* b */ c /**/ d", "a c d"),
        ("a /* /* */ b", "a b"),
        ("a /*! b */ c", "a b c"),
        ("a /*!80013 b*/c", "a b c"),
        ("a /*!080013b*/c", "a b c"),
        ("a /*!50000 b /* c */ d */ e", "a b d e"),
        ("a */ b", "a * / b"),
        ("/*+ x */ a", "a"),
        ("@a @`b c` @'d' @\"e\" @a.b$c @ f", "@a @b c @d @e @a.b$c @ f"),
        ("@@x @@global.y @@`z`", "@@x @@global . my @@z"),
        ("@a:=1 @b =2", "@a := n1 @b = n2"),
        ("u@h 'u'@'h'", "u @h <u> @h"),
        ("N'a' n'b' x'0A' X'0a' b'01'", "<a> <b> <0A> <0a> <01>"),
        ("_utf8'a' _latin1 x'41'", "_utf8 <a> _latin1 <41>"),
        ("N 'a' nx'a'", "N <a> nx <a>"),
        ("?,?", "? , ?"),
        ("a->>'$.b'", "a - > > <$.b>"),
        ("a$b", "a$b"),
        ("größe", "größe"),
        ("a;b;;", "a ; b ; ;"),
    ] {
        assert_eq!(tokens(text), expected, "{text}");
    }
}

#[test]
fn what_the_server_may_read_otherwise_is_irregular() {
    for (text, why) in [
        ("'a", "!Unclosed"),
        ("'a\\'", "!Unclosed"),
        ("'a\\", "!Unclosed"),
        ("`a", "!Unclosed"),
        ("/* a", "!Unclosed"),
        ("/*! ", "!Unclosed"),
        ("/*", "!Unclosed"),
        ("/*+ '*/ ' */", "!Unclosed"),
        ("\0", "!ZeroByte"),
        ("-- a\0b", "!ZeroByte"),
        ("/* a\0b */", "!ZeroByte"),
        ("`a\0`", "!ZeroByte"),
        ("1.e(", "!Number"),
        (".5e+", "!Number"),
        ("$a b", "!Dollar"),
        ("$a$ b$a$", "!Dollar"),
        ("$$ ", "!Dollar"),
        ("$$/* $$; a */", "!Dollar"),
        ("x'0g'", "!Literal"),
        ("x'0'", "!Literal"),
        ("b'2'", "!Literal"),
        ("@@ a", "!Literal"),
        ("\\N", "!Literal"),
        ("--é", "!Character"),
        ("@é", "!Character"),
    ] {
        assert_eq!(tokens(text), why, "{text:?}");
    }
    let bytes = |text: &'static [u8], charset| {
        Lexer::new(text, SqlDialect { charset, ..SqlDialect::default() }).last()
    };
    let broken = Some(SqlToken::Irregular(Irregularity::Character));
    // 0xa0 is white space in latin1; in utf8 the server may read the quote as part of the name.
    assert_eq!(bytes(b"FOR\xa0UPDATE", ClientCharset::SingleByte), broken);
    assert_eq!(bytes(b"`\xe2` x `", ClientCharset::Utf8), broken);
    assert_eq!(bytes(b"\xe2\x82", ClientCharset::Utf8), broken);
    assert_eq!(bytes(b"'a'", ClientCharset::Unknown), Some(SqlToken::Irregular(Irregularity::Dialect)));
}

#[test]
fn a_string_may_hold_any_bytes() {
    let text = b"'\x00\xff\xe2\x28\\''";
    let mut lexer = Lexer::new(text, SqlDialect::default());
    assert_eq!(lexer.next(), Some(SqlToken::Text(&text[1..text.len() - 1])));
    assert_eq!(lexer.next(), None);
}

#[test]
fn modes_change_quotes_and_backslashes() {
    let mode = |mode| SqlDialect { mode: SqlMode::read(mode), ..SqlDialect::default() };
    assert_eq!(with("\"a\"\"b\" 'c'", mode("ANSI_QUOTES")), "[a\"\"b] <c>");
    assert_eq!(with("@\"a b\"", mode("ANSI_QUOTES")), "@a b");
    assert_eq!(with("'a\\' b", mode("NO_BACKSLASH_ESCAPES")), "<a\\> b");
    assert_eq!(with("'a\\'' b'", mode("NO_BACKSLASH_ESCAPES")), "<a\\'' b>");
}

#[test]
fn trail_bytes_that_look_like_quotes_are_no_quotes() {
    let texts = |text: &'static [u8], charset| {
        Lexer::new(text, SqlDialect { charset, ..SqlDialect::default() }).count()
    };
    // 0x5c as a trail byte; likewise 0x60 in a quoted name.
    assert_eq!(texts(b"'\xbf\x5c' x", ClientCharset::Gbk), 2);
    assert_eq!(texts(b"`\x81\x60` x", ClientCharset::Gbk), 2);
    assert_eq!(texts(b"`\x81\x60` x", ClientCharset::ShiftJis), 2);
    // A backslash escapes one byte, even if that begins a multi-byte character.
    assert_eq!(texts(b"'\\\xbf' x", ClientCharset::Gbk), 2);
    // Not a valid character: the quote ends the string.
    assert_eq!(texts(b"'\xbf' x", ClientCharset::Gbk), 2);
}

#[test]
fn long_strings_are_found_to_their_end_at_any_length() {
    for length in 0..200 {
        let text = format!("'{}' x", "a".repeat(length));
        let found: Vec<_> = Lexer::new(text.as_bytes(), SqlDialect::default()).collect();
        assert_eq!(found.len(), 2, "{length}");
        assert_eq!(found.first(), Some(&SqlToken::Text("a".repeat(length).as_bytes())));
    }
}

#[test]
fn a_word_that_is_found_at_once_is_the_one_that_is_found_step_by_step() {
    let words = [
        "a", "n", "X", "_b", "$", "1", "b1", "\u{e9}", ".", " ", "'", "\"", "`", "/*!", "*/", "-- ", "@", "(",
    ];
    for [first, second, third] in
        words.iter().flat_map(|a| words.map(|b| [*a, b])).flat_map(|[a, b]| words.map(|c| [a, b, c]))
    {
        for mode in ["", "ANSI_QUOTES", "ORACLE"] {
            let dialect = SqlDialect { mode: SqlMode::read(mode), ..SqlDialect::default() };
            let text = format!("{first}{second}{third} b");
            let (mut at_once, mut by_steps) =
                (Lexer::new(text.as_bytes(), dialect), Lexer::new(text.as_bytes(), dialect));
            loop {
                let token = at_once.next();
                assert_eq!(token, by_steps.any(), "{text} {mode}");
                assert_eq!(at_once.spaced(), by_steps.spaced(), "{text} {mode}");
                if token.is_none() {
                    break;
                }
            }
        }
    }
}

#[test]
fn executable_comments_are_told_apart() {
    let executable = |text: &str| {
        let mut lexer = Lexer::new(text.as_bytes(), SqlDialect::default());
        while lexer.next().is_some() {}
        lexer.executable()
    };
    assert_eq!(executable("SELECT /* a */ 1"), ExecutableComment::None);
    assert_eq!(executable("SELECT /*! 1 */"), ExecutableComment::Always);
    assert_eq!(executable("SELECT /*!100000 1 */"), ExecutableComment::Sometimes);
    assert_eq!(executable("SELECT /*M! 1 */"), ExecutableComment::Sometimes);
    assert_eq!(executable("SELECT '/*! 1 */'"), ExecutableComment::None);
}
