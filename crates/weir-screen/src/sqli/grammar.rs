//! Reads a value as what stands behind the place of a literal in a statement, and notes what it would change there.
//!
//! Two states are enough: an operand is due, or an operand has just been read. Almost every sentence of a natural language fails here at
//! its second or third word, because two words in a row are no expression. Parentheses are kept on a stack that is as deep as they are.

use crate::sqli::token::{Token, Tokens};
use crate::sqli::words::{Verb, Word};

/// Where in a statement the value is taken to stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// In place of a number or another bare operand.
    Bare,
    /// Right behind an operand.
    Behind,
    /// Within a string in these quotes.
    Quoted(u8),
}

/// How reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending<'v> {
    /// The value is over, and an operand was the last of it.
    Whole,
    /// The value is over, and an operand was due.
    Unfinished,
    /// A comment hides what the application has behind the value.
    Comment {
        /// What stands in the comment.
        rest: &'v [u8],
        /// The comment's mark.
        mark: u8,
        /// Whether an operand was due.
        unfinished: bool,
    },
    /// The value ends within a string whose second quote is the application's own.
    Reopened {
        /// What stands in that string.
        content: &'v [u8],
    },
    /// The value is over but for the quote that would begin a string behind an operand.
    Dangling,
    /// The statement is over: `;`.
    Semicolon,
    /// This is not SQL, from some token on.
    Broken,
}

/// What a value would do to the statement it is put into.
#[derive(Clone, Debug)]
pub struct Facts<'v> {
    /// How reading ended.
    pub ending: Ending<'v>,
    /// Tokens read.
    pub tokens_count: u32,
    /// `and`, `or` and the like.
    pub logic_count: u32,
    /// `||`.
    pub pipes_count: u32,
    /// Comparisons whose both sides were read.
    pub compares_count: u32,
    /// Of those, the ones of constants.
    pub constant_compares_count: u32,
    /// Conditions that are a constant.
    pub constants_count: u32,
    /// Arithmetic.
    pub arithmetic_count: u32,
    /// Parentheses closed that the application has opened.
    pub popped_count: u32,
    /// Names read as operands.
    pub names_count: u32,
    /// Whether the first operand of a bare value is a number or the like.
    pub begins_number: bool,
    /// Whether `union` and its `select` were read.
    pub union: bool,
    /// Whether that `select` is in parentheses.
    pub union_opened: bool,
    /// What the `select` behind `union` names.
    pub union_list: List,
    /// What a `select` in parentheses names.
    pub inner_list: List,
    /// What a `select` of a statement of its own names.
    pub stacked_list: List,
    /// Whether a statement of its own was begun that is not a `select`.
    pub stacked: bool,
    /// Whether there was a `;` between statements.
    pub semicolon: bool,
    /// Tokens before the first `;`.
    pub before_semicolon_count: u32,
    /// Whether the first token is `<`.
    pub begins_bracket: bool,
    /// Whether the last operator is `>`.
    pub ends_bracket: bool,
    /// Whether an operator is missing before a query.
    pub lacking: bool,
    /// A function that waits, writes or leaks.
    pub hostile: bool,
    /// `sleep`.
    pub delay: bool,
    /// A function or variable that tells of the server.
    pub telling: bool,
    /// Ordinary functions of SQL.
    pub functions_count: u32,
    /// Names of the database's own dictionary.
    pub dictionary: bool,
    /// `order by`, `group by`.
    pub sort: bool,
    /// `where`, `having`.
    pub condition: bool,
    /// `limit` and such.
    pub limit: bool,
    /// `into outfile`.
    pub into_file: bool,
    /// `procedure analyse()`.
    pub procedure: bool,
    /// `in boolean mode`.
    pub full_text: bool,
    /// `is null`, `in (…)`, `between`, `like`.
    pub predicates_count: u32,
    /// Comments between tokens, and MySQL's hidden ones.
    pub obfuscation_count: u32,
    /// Numbers in hexadecimal notation.
    pub hex_count: u32,
}

/// What a `select` names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Items.
    pub items_count: u32,
    /// Of those, the ones that are not just a name.
    pub rich_count: u32,
    /// Whether it says from where.
    pub from: bool,
    /// Whether it says under which condition.
    pub condition: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Root,
    Group,
    Call(Word),
    Query(Part),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    List,
    From,
    Condition,
    Sort,
}

/// Whose `select` a query is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Nobody,
    Union,
    Inner,
    Stacked,
}

/// Parentheses, or the statement itself.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    kind: Kind,
    whose: Whose,
    /// Whether an operand is due.
    due: bool,
    /// Whether nothing was read in it yet.
    fresh: bool,
    /// Whether all operands since the last border were constants.
    constant: bool,
    /// Whether what stood before a comparison was one.
    compared: Option<bool>,
    /// Borders (`and`) that belong to `between`.
    betweens: u8,
    /// Whether the item has its other name already.
    named: bool,
    /// Whether `case` was read.
    cased: bool,
}

impl Frame {
    fn new(kind: Kind) -> Frame {
        Frame {
            kind,
            whose: Whose::Nobody,
            due: true,
            fresh: true,
            constant: true,
            compared: None,
            betweens: 0,
            named: false,
            cased: false,
        }
    }
}

/// What an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    Constant,
    /// A string: a constant too.
    Text,
    Name,
    /// A call, a variable, all columns.
    Other,
}

/// Stops reading.
pub(crate) struct Stop;

/// Reads.
pub(crate) struct Reader<'v, 's> {
    pub(crate) tokens: Tokens<'v>,
    context: Context,
    below: &'s mut Vec<Frame>,
    frame: Frame,
    pub(crate) facts: Facts<'v>,
}

impl Default for Facts<'_> {
    fn default() -> Self {
        Facts {
            ending: Ending::Broken,
            tokens_count: 0,
            logic_count: 0,
            pipes_count: 0,
            compares_count: 0,
            constant_compares_count: 0,
            constants_count: 0,
            arithmetic_count: 0,
            popped_count: 0,
            names_count: 0,
            begins_number: false,
            union: false,
            union_opened: false,
            union_list: List::default(),
            inner_list: List::default(),
            stacked_list: List::default(),
            stacked: false,
            semicolon: false,
            before_semicolon_count: 0,
            begins_bracket: false,
            ends_bracket: false,
            lacking: false,
            hostile: false,
            delay: false,
            telling: false,
            functions_count: 0,
            dictionary: false,
            sort: false,
            condition: false,
            limit: false,
            into_file: false,
            procedure: false,
            full_text: false,
            predicates_count: 0,
            obfuscation_count: 0,
            hex_count: 0,
        }
    }
}

/// Reads `value` from `at` on, as it would be read in `context`. O(n) in time; `stack` is room that is used again, at most one entry
/// per byte.
pub fn read<'v>(value: &'v [u8], at: usize, context: Context, stack: &mut Vec<Frame>) -> Facts<'v> {
    stack.clear();
    let mut root = Frame::new(Kind::Root);
    root.due = context == Context::Bare;
    // What the application compares the value with is no constant.
    root.constant = context == Context::Bare;
    let tokens = Tokens::new(value, at);
    let mut reader = Reader { tokens, context, below: stack, frame: root, facts: Facts::default() };
    while reader.step().is_ok() {}
    reader.settle();
    let Reader { tokens, mut facts, .. } = reader;
    facts.obfuscation_count = tokens.comments_count + tokens.hidden_count;
    facts.hex_count = tokens.hex_count;
    facts
}

impl<'v> Reader<'v, '_> {
    fn step(&mut self) -> Result<(), Stop> {
        let token = self.tokens.next_token();
        self.facts.tokens_count += 1;
        let fresh = std::mem::replace(&mut self.frame.fresh, false);
        if self.frame.due { self.operand_due(token, fresh) } else { self.operand_read(token) }
    }

    fn stop(&mut self, ending: Ending<'v>) -> Result<(), Stop> {
        self.facts.ending = ending;
        Err(Stop)
    }

    fn broken(&mut self) -> Result<(), Stop> {
        self.stop(Ending::Broken)
    }

    fn operand_due(&mut self, token: Token<'v>, fresh: bool) -> Result<(), Stop> {
        match token {
            Token::Number => self.operand(Operand::Constant),
            Token::Text { closed: true, .. } => self.operand(Operand::Text),
            Token::Text { content, quote, closed: false } => {
                self.operand(Operand::Text)?;
                match self.context == Context::Quoted(quote) {
                    true => self.stop(Ending::Reopened { content }),
                    false => self.stop(Ending::Unfinished),
                }
            }
            Token::Word(word, text) => self.word_due(word, text, fresh),
            Token::Name => self.name(Word::Name),
            Token::Variable { of_server } => {
                self.facts.telling |= of_server;
                self.facts.functions_count += u32::from(of_server);
                self.facts.begins_number |= self.facts.tokens_count == 1;
                self.operand(Operand::Other)
            }
            Token::Sign => {
                self.facts.arithmetic_count += 1;
                // A sign is not what makes a frame: `(-1)`.
                self.frame.fresh = fresh;
                Ok(())
            }
            Token::Star if matches!(self.frame.kind, Kind::Query(Part::List) | Kind::Call(_)) => {
                self.operand(Operand::Other)
            }
            Token::Open => {
                self.push(Kind::Group);
                Ok(())
            }
            Token::Close if fresh && matches!(self.frame.kind, Kind::Call(_) | Kind::Group) => self.close(),
            Token::End => self.stop(Ending::Unfinished),
            Token::Comment { rest, mark } => self.stop(Ending::Comment { rest, mark, unfinished: true }),
            _ => self.broken(),
        }
    }

    fn word_due(&mut self, word: Word, text: &'v [u8], fresh: bool) -> Result<(), Stop> {
        match word {
            Word::Select if fresh && self.frame.kind == Kind::Group => {
                self.begin_query(Whose::Inner);
                Ok(())
            }
            Word::Not | Word::Prefix => {
                self.frame.fresh = fresh;
                Ok(())
            }
            Word::Case => {
                self.frame.cased = true;
                self.facts.functions_count += 1;
                Ok(())
            }
            Word::Branch if self.frame.cased => Ok(()),
            Word::Quantifier if fresh && matches!(self.frame.kind, Kind::Call(_)) => Ok(()),
            Word::Literal if !self.tokens.opens_next() => self.operand(Operand::Constant),
            Word::Name
            | Word::Literal
            | Word::Dictionary
            | Word::Hostile
            | Word::Delay
            | Word::Telling
            | Word::Function
            | Word::Object
            | Word::FullText
            | Word::Suffix => self.name(word),
            Word::Verb(Verb::Other) => self.name(Word::Name),
            // Words with a meaning of their own that are functions too: left(…), if(…), replace(…).
            Word::Join | Word::Verb(_) | Word::Arithmetic | Word::Values | Word::Compare
                if self.tokens.opens_next() =>
            {
                self.name(Word::Function)
            }
            _ => {
                let _ = text;
                self.broken()
            }
        }
    }

    /// A name with all its parts, and the call it may be.
    fn name(&mut self, word: Word) -> Result<(), Stop> {
        let mut last = word;
        let mut is_qualified = false;
        self.note_name(word);
        while self.tokens.peek() == Token::Dot {
            self.tokens.next_token();
            let owner = last;
            match self.tokens.next_token() {
                Token::Word(word, _) => last = word,
                Token::Name => last = Word::Name,
                Token::Star => return self.operand(Operand::Other),
                // master..xp_cmdshell
                Token::Dot => match self.tokens.next_token() {
                    Token::Word(word, _) => last = word,
                    Token::Name => last = Word::Name,
                    _ => return self.broken(),
                },
                _ => return self.broken(),
            }
            is_qualified = true;
            self.note_name(last);
            // dbms_pipe.receive_message
            if owner == Word::Hostile {
                last = Word::Hostile;
            }
        }
        if self.tokens.opens_next() {
            self.tokens.next_token();
            let class = match last {
                // time.sleep() is Python's.
                Word::Delay | Word::Telling | Word::Function if is_qualified => Word::Name,
                Word::Object => Word::Function,
                Word::Literal => Word::Telling,
                other => other,
            };
            self.push(Kind::Call(class));
            return Ok(());
        }
        self.facts.names_count += 1;
        self.operand(Operand::Name)
    }

    fn note_name(&mut self, word: Word) {
        self.facts.dictionary |= word == Word::Dictionary;
    }

    fn push(&mut self, kind: Kind) {
        self.below.push(self.frame);
        self.frame = Frame::new(kind);
    }

    /// `(` begins a statement.
    pub(crate) fn push_group(&mut self) {
        self.settle();
        self.push(Kind::Group);
    }

    /// Makes the frame a query whose items follow.
    pub(crate) fn begin_select(&mut self, stacked: bool) {
        self.begin_query(if stacked { Whose::Stacked } else { Whose::Union });
    }

    /// `if`: a condition follows.
    pub(crate) fn begin_condition(&mut self) {
        self.settle();
        self.facts.condition = true;
        self.frame.kind = Kind::Root;
        self.frame.due = true;
    }

    fn begin_query(&mut self, whose: Whose) {
        self.settle();
        self.frame.kind = Kind::Query(Part::List);
        self.frame.whose = whose;
        self.frame.due = true;
        self.frame.named = false;
        loop {
            match self.tokens.peek() {
                Token::Word(Word::Quantifier, _) => {
                    self.tokens.next_token();
                }
                Token::Word(Word::Limit, word) if word.eq_ignore_ascii_case(b"top") => {
                    self.tokens.next_token();
                    if self.tokens.peek() == Token::Number {
                        self.tokens.next_token();
                    }
                }
                _ => return,
            }
        }
    }

    fn operand(&mut self, operand: Operand) -> Result<(), Stop> {
        let was_due = std::mem::replace(&mut self.frame.due, false);
        self.frame.constant &= matches!(operand, Operand::Constant | Operand::Text);
        if self.context == Context::Bare && self.facts.logic_count == 0 && self.facts.names_count == 0 {
            self.facts.begins_number |= operand == Operand::Constant;
        }
        if was_due
            && self.frame.kind == Kind::Query(Part::List)
            && let Some(list) = self.list()
        {
            list.items_count += 1;
            list.rich_count += u32::from(operand != Operand::Name);
        }
        Ok(())
    }

    fn list(&mut self) -> Option<&mut List> {
        match self.frame.whose {
            Whose::Nobody => None,
            Whose::Union => Some(&mut self.facts.union_list),
            Whose::Inner => Some(&mut self.facts.inner_list),
            Whose::Stacked => Some(&mut self.facts.stacked_list),
        }
    }

    /// A condition or an item is over.
    fn settle(&mut self) {
        let frame = &mut self.frame;
        if frame.due {
            // Nothing was compared with what did not come.
        } else if let Some(left) = frame.compared {
            self.facts.compares_count += 1;
            self.facts.constant_compares_count += u32::from(left && frame.constant);
        } else if frame.constant {
            self.facts.constants_count += 1;
        }
        frame.compared = None;
        frame.constant = true;
        frame.named = false;
    }

    /// Parentheses end.
    fn close(&mut self) -> Result<(), Stop> {
        let is_constant = self.frame.constant;
        self.settle();
        let closed = self.frame.kind;
        let Some(outer) = self.below.pop() else {
            self.facts.popped_count += 1;
            self.frame.kind = Kind::Root;
            self.frame.due = false;
            self.frame.constant = false;
            return Ok(());
        };
        self.frame = outer;
        match closed {
            Kind::Call(word) => {
                match word {
                    Word::Hostile => self.facts.hostile = true,
                    Word::Delay => self.facts.delay = true,
                    Word::Telling => self.facts.telling = true,
                    _ => {}
                }
                let is_known = matches!(word, Word::Hostile | Word::Delay | Word::Telling | Word::Function);
                self.facts.functions_count += u32::from(is_known);
                self.operand(Operand::Other)
            }
            Kind::Group if is_constant => self.operand(Operand::Constant),
            _ => self.operand(Operand::Other),
        }
    }

    fn due(&mut self) -> Result<(), Stop> {
        self.frame.due = true;
        Ok(())
    }

    fn compare(&mut self) -> Result<(), Stop> {
        if self.frame.compared.is_none() {
            self.frame.compared = Some(self.frame.constant);
            self.frame.constant = true;
        }
        self.due()
    }

    fn logic(&mut self) -> Result<(), Stop> {
        if self.frame.betweens > 0 {
            self.frame.betweens -= 1;
            return self.due();
        }
        self.settle();
        self.facts.logic_count += 1;
        self.due()
    }

    fn operand_read(&mut self, token: Token<'v>) -> Result<(), Stop> {
        match token {
            Token::Arithmetic | Token::Star => {
                self.facts.arithmetic_count += 1;
                self.due()
            }
            Token::Sign => {
                self.facts.arithmetic_count += 1;
                self.due()
            }
            Token::Compare => {
                let sign = self.tokens.last_byte();
                self.facts.begins_bracket |= self.facts.tokens_count == 1 && sign == Some(b'<');
                self.facts.ends_bracket = sign == Some(b'>');
                self.compare()
            }
            Token::Logic => self.logic(),
            Token::Pipes => {
                self.facts.pipes_count += 1;
                self.logic()
            }
            Token::Cast => match self.tokens.next_token() {
                Token::Word(..) | Token::Name => Ok(()),
                _ => self.broken(),
            },
            Token::Close => self.close(),
            Token::Comma => {
                if let Kind::Call(word @ (Word::Hostile | Word::Delay)) = self.frame.kind {
                    self.facts.hostile |= word == Word::Hostile;
                }
                self.settle();
                self.due()
            }
            Token::Word(word, text) => self.word_read(word, text),
            Token::Name => self.other_name(),
            Token::Text { closed: true, .. } if self.frame.kind == Kind::Query(Part::List) => {
                self.other_name()
            }
            Token::Text { content, quote, closed: false } if self.context == Context::Quoted(quote) => {
                // The application's own quote behind an operand is an error, but not one that the sender must have meant.
                match content.is_empty() {
                    true => self.stop(Ending::Dangling),
                    false => self.broken(),
                }
            }
            // An operator that was lost on the way, or is a comment.
            Token::Open if self.may_lack_operator() => {
                self.facts.lacking = true;
                self.push(Kind::Group);
                Ok(())
            }
            Token::Semicolon if self.below.is_empty() => self.semicolon(),
            Token::End => self.stop(Ending::Whole),
            Token::Comment { rest, mark } => self.stop(Ending::Comment { rest, mark, unfinished: false }),
            _ => self.broken(),
        }
    }

    fn may_lack_operator(&self) -> bool {
        let begins = self.is_quoted() || self.facts.begins_number;
        let is_query = matches!(self.tokens.peek(), Token::Word(Word::Select, _));
        is_query && begins && self.below.is_empty() && self.frame.kind == Kind::Root
    }

    /// Another name for an item or a table.
    fn other_name(&mut self) -> Result<(), Stop> {
        let may = matches!(self.frame.kind, Kind::Query(Part::List | Part::From)) && !self.frame.named;
        if !may {
            return self.broken();
        }
        self.frame.named = true;
        Ok(())
    }

    fn word_read(&mut self, word: Word, text: &'v [u8]) -> Result<(), Stop> {
        match word {
            Word::Logic => self.logic(),
            Word::Not => match self.tokens.peek() {
                Token::Word(Word::Compare | Word::In | Word::Between, _) => Ok(()),
                _ => self.broken(),
            },
            Word::Compare => self.predicate(text),
            Word::Is => {
                self.facts.predicates_count += 1;
                self.compare()
            }
            Word::In => self.within(),
            Word::Between => {
                self.facts.predicates_count += 1;
                self.frame.betweens = self.frame.betweens.saturating_add(1);
                self.compare()
            }
            Word::Arithmetic => {
                self.facts.arithmetic_count += 1;
                self.due()
            }
            Word::Link if text.eq_ignore_ascii_case(b"for") && !matches!(self.frame.kind, Kind::Call(_)) => {
                // `for update`, `for xml path('')`.
                match self.tokens.next_token() {
                    Token::Word(Word::Verb(_) | Word::Name | Word::Limit, _) => Ok(()),
                    _ => self.broken(),
                }
            }
            Word::Branch | Word::Link => self.due(),
            Word::End if self.frame.cased => Ok(()),
            Word::Suffix => Ok(()),
            Word::As => match self.tokens.next_token() {
                // `as` names an item; in cast(… as …) it names a type.
                Token::Word(..) | Token::Name | Token::Text { .. } => {
                    self.frame.named = true;
                    Ok(())
                }
                _ => self.broken(),
            },
            Word::Verb(verb) => match self.below.is_empty() && self.begins_statement(verb, text, false) {
                true => {
                    self.facts.stacked = true;
                    self.facts.hostile |= verb == Verb::WaitFor;
                    self.stop(Ending::Semicolon)
                }
                false if self.frame.kind != Kind::Root => self.other_name(),
                false => self.broken(),
            },
            Word::Select if self.below.is_empty() && self.frame.kind == Kind::Root && self.is_quoted() => {
                self.begin_query(Whose::Stacked);
                Ok(())
            }
            _ => self.clause(word, text),
        }
    }

    fn is_quoted(&self) -> bool {
        matches!(self.context, Context::Quoted(_))
    }

    fn predicate(&mut self, text: &'v [u8]) -> Result<(), Stop> {
        self.facts.predicates_count += 1;
        let stands_alone = text.eq_ignore_ascii_case(b"isnull") || text.eq_ignore_ascii_case(b"notnull");
        if stands_alone {
            self.facts.compares_count += 1;
            return Ok(());
        }
        // `sounds like`, `similar to`, `member of`.
        if let Token::Word(Word::Compare, _) = self.tokens.peek() {
            self.tokens.next_token();
        }
        self.compare()
    }

    fn within(&mut self) -> Result<(), Stop> {
        match self.tokens.peek() {
            // position('a' in b)
            _ if matches!(self.frame.kind, Kind::Call(_)) => self.due(),
            Token::Open => {
                self.facts.predicates_count += 1;
                self.compare()
            }
            Token::Word(Word::FullText | Word::Join, _) => {
                while let Token::Word(Word::FullText | Word::Join, _) = self.tokens.peek() {
                    self.tokens.next_token();
                }
                self.facts.full_text = true;
                Ok(())
            }
            _ => self.broken(),
        }
    }

    /// `from`, `where` and the other parts of a query.
    fn clause(&mut self, word: Word, _text: &'v [u8]) -> Result<(), Stop> {
        let is_root = self.frame.kind == Kind::Root;
        match word {
            Word::Union => self.union(),
            Word::From if matches!(self.frame.kind, Kind::Call(_)) => self.due(),
            Word::From => {
                if let Some(list) = self.list() {
                    list.from = true;
                }
                self.part(Part::From)
            }
            Word::Condition => {
                match self.list() {
                    Some(list) => list.condition = true,
                    None => self.facts.condition = true,
                }
                self.settle();
                if !is_root {
                    self.frame.kind = Kind::Query(Part::Condition);
                }
                self.due()
            }
            Word::Sort => match self.tokens.next_token() {
                Token::Word(Word::By, _) => {
                    self.facts.sort |= self.frame.whose == Whose::Nobody;
                    self.part(Part::Sort)
                }
                _ => self.broken(),
            },
            Word::Limit => {
                self.facts.limit = true;
                self.part(Part::Sort)
            }
            Word::Join => {
                while let Token::Word(Word::Join, _) = self.tokens.peek() {
                    self.tokens.next_token();
                }
                self.part(Part::From)
            }
            Word::Into => match self.tokens.next_token() {
                Token::Word(Word::OutFile, _) => {
                    self.facts.into_file = true;
                    self.due()
                }
                Token::Variable { .. } | Token::Word(Word::Name, _) | Token::Name => Ok(()),
                _ => self.broken(),
            },
            Word::Procedure => match self.tokens.next_token() {
                Token::Word(Word::Name, name) if name.eq_ignore_ascii_case(b"analyse") => {
                    self.facts.procedure = true;
                    match self.tokens.next_token() {
                        Token::Open => {
                            self.push(Kind::Call(Word::Function));
                            Ok(())
                        }
                        _ => self.broken(),
                    }
                }
                _ => self.broken(),
            },
            _ => self.other_name(),
        }
    }

    fn part(&mut self, part: Part) -> Result<(), Stop> {
        self.settle();
        self.frame.kind = Kind::Query(part);
        self.due()
    }

    fn union(&mut self) -> Result<(), Stop> {
        while let Token::Word(Word::Quantifier, _) = self.tokens.peek() {
            self.tokens.next_token();
        }
        match self.tokens.next_token() {
            Token::Word(Word::Select, _) => {
                self.facts.union = true;
                self.begin_query(Whose::Union);
                Ok(())
            }
            Token::Open => {
                let mut tokens = self.tokens.clone();
                let mut depth = 1;
                while tokens.peek() == Token::Open {
                    tokens.next_token();
                    depth += 1;
                }
                if !matches!(tokens.next_token(), Token::Word(Word::Select, _)) {
                    return self.broken();
                }
                self.facts.union = true;
                self.facts.union_opened = true;
                self.settle();
                for _ in 0..depth {
                    self.push(Kind::Group);
                }
                self.tokens = tokens;
                self.begin_query(Whose::Union);
                Ok(())
            }
            _ => self.broken(),
        }
    }
}
