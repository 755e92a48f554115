//! Statements of MySQL's grammar, drawn at random over the tables `t (a, b, c)` and `u (a, b, d)`.

/// splitmix64: the same numbers everywhere.
pub struct Draws(pub u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }

    /// True one time in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn one_of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.below(texts.len() as u64) as usize]
    }
}

/// Functions that are built in and change nothing; `$` is an expression.
const BUILT_IN: &[&str] = &[
    "ABS($)",
    "COALESCE($, $)",
    "IF($, $, $)",
    "IFNULL($, $)",
    "NULLIF($, $)",
    "CONCAT($, 'x')",
    "CONCAT_WS(',', $, $)",
    "LOWER($)",
    "LENGTH($)",
    "SUBSTRING($, 1, 2)",
    "SUBSTRING($ FROM 1 FOR 2)",
    "TRIM($)",
    "REPLACE($, 'a', 'b')",
    "LEFT($, 2)",
    "LPAD($, 5, ' ')",
    "SHA2($, 256)",
    "HEX($)",
    "ROUND($, 2)",
    "TRUNCATE($, 1)",
    "GREATEST($, $)",
    "FIELD($, 1, 2)",
    "CAST($ AS CHAR(10))",
    "CAST($ AS DECIMAL(10, 2))",
    "CONVERT($, SIGNED)",
    "NOW()",
    "CURDATE()",
    "CURRENT_TIMESTAMP",
    "UNIX_TIMESTAMP()",
    "DATE_ADD('2024-01-01', INTERVAL 1 DAY)",
    "DATEDIFF('2024-01-01', '2023-01-01')",
    "EXTRACT(YEAR FROM '2024-01-01')",
    "RAND()",
    "UUID()",
    "DATABASE()",
    "VERSION()",
    "USER()",
    "JSON_OBJECT('a', $)",
    "JSON_EXTRACT('{\"a\":1}', '$.a')",
    "FIND_IN_SET('a', $)",
    "INET_ATON('127.0.0.1')",
    "FORMAT($, 2)",
    "ELT(1, $, $)",
    "CRC32($)",
    "BIT_COUNT($)",
    "CHAR(65)",
    "STRCMP($, $)",
    "(SELECT COUNT(*) FROM u)",
    "(SELECT MAX(d) FROM u WHERE u.a = 1)",
    "(SELECT GROUP_CONCAT(b ORDER BY b SEPARATOR '-') FROM u)",
];

/// What in an expression keeps its statement from running anywhere.
const DIRTY: &[&str] = &[
    "f($)",
    "app.f($)",
    "`f`($)",
    "app.count(1)",
    "app . abs(1)",
    "app. `abs`(1)",
    "GET_LOCK('x', 0)",
    "RELEASE_LOCK('x')",
    "IS_FREE_LOCK('x')",
    "LAST_INSERT_ID()",
    "LAST_INSERT_ID(1)",
    "ROW_COUNT()",
    "FOUND_ROWS()",
    "CONNECTION_ID()",
    "LOAD_FILE('/x')",
    "@v",
    "(@v := $)",
    "NEXTVAL(s)",
    "MD5($)",
    "SHA1($)",
    "(SELECT a FROM t LIMIT 1 FOR UPDATE)",
];

const LITERALS: &[&str] = &[
    "1",
    "0",
    "-7",
    "2.5",
    "1e3",
    "0x41",
    "'x'",
    "'it''s'",
    "'a\\'b'",
    "\"q\"",
    "'; DELETE FROM t; -- '",
    "'/*! x */'",
    "NULL",
    "TRUE",
    "_utf8mb4'x'",
    "N'x'",
    "X'41'",
];

const BETWEEN: &[&str] =
    &[" ", " ", " ", " ", "\n", "\t", " /* c */ ", " /* ; DELETE FROM t */ ", " -- it's\n", " # INTO @x\n"];

/// One text, which may be dirty anywhere.
pub struct Statements<'d> {
    pub draws: &'d mut Draws,
    /// One expression in so many is dirty; 0 for none.
    pub dirty_once_in: u64,
}

impl Statements<'_> {
    pub fn text(&mut self) -> String {
        let mut text = match self.draws.below(12) {
            0..=6 => self.query(0),
            7 => format!("WITH w AS ({}) {}", self.select(1), self.behind_with()),
            8 => {
                let format = self.draws.one_of(&["", "FORMAT=JSON ", "FORMAT = TREE ", "ANALYZE "]);
                let explained = if self.is_dirty() { self.write() } else { self.query(0) };
                format!("EXPLAIN {format}{explained}")
            }
            9 if self.dirty_once_in > 0 => self.write(),
            10 if self.dirty_once_in > 0 => self.other(),
            _ => self.query(0),
        };
        if self.is_dirty() {
            text = format!("{text}; {}", self.query(0));
        }
        self.respaced(&text)
    }

    fn is_dirty(&mut self) -> bool {
        self.dirty_once_in > 0 && self.draws.once_in(self.dirty_once_in)
    }

    fn behind_with(&mut self) -> String {
        let write = self.draws.one_of(&["UPDATE t SET b = 1", "DELETE FROM t"]);
        if self.is_dirty() {
            return write.to_owned();
        }
        // What does not begin with SELECT may call functions in its order alone.
        let order = self.expression(1);
        match self.draws.below(4) {
            0 => format!("TABLE t ORDER BY 1, {order}"),
            1 => format!("({}) ORDER BY 1, {order}", self.select(1)),
            2 => format!("SELECT (WITH v AS ({}) TABLE v), {order}", self.select(1)),
            _ => format!("SELECT * FROM w, {}", self.table(1)),
        }
    }

    fn query(&mut self, depth: u32) -> String {
        if depth < 2 && self.draws.once_in(5) {
            let with = self.draws.one_of(&["UNION", "UNION ALL", "EXCEPT", "INTERSECT", "UNION DISTINCT"]);
            let (left, right) = (self.query(depth + 1), self.query(depth + 1));
            return format!("({left}) {with} ({right})");
        }
        let mut text = self.select(depth);
        if self.draws.once_in(3) {
            text += self.draws.one_of(&[" ORDER BY 1", " ORDER BY 1 DESC", " LIMIT 3", " LIMIT 1, 2"]);
        }
        if self.is_dirty() {
            text += self.draws.one_of(&[
                " FOR UPDATE",
                " FOR SHARE",
                " LOCK IN SHARE MODE",
                " FOR UPDATE SKIP LOCKED",
                " for update nowait",
                " FOR/**/UPDATE",
            ]);
        }
        text
    }

    fn select(&mut self, depth: u32) -> String {
        // A server takes HIGH_PRIORITY in the outermost SELECT alone.
        let all = ["HIGH_PRIORITY ", "", "", "DISTINCT ", "ALL ", "SQL_NO_CACHE "];
        let what = self.draws.one_of(if depth == 0 { &all } else { &all[1..] });
        let first = self.expression(depth);
        let mut text = format!("SELECT {what}{first} AS x");
        if self.is_dirty() {
            text +=
                self.draws.one_of(&[" INTO @v", " INTO OUTFILE '/nowhere/x'", " INTO DUMPFILE '/nowhere/x'"]);
        }
        if self.draws.once_in(6) {
            return text;
        }
        text += &format!(" FROM {}", self.table(depth));
        if self.draws.once_in(2) {
            let (left, right) = (self.expression(depth + 1), self.expression(depth + 1));
            let how = self.draws.one_of(&["=", "<", "<>", "LIKE", "<=>", "REGEXP"]);
            text += &format!(" WHERE {left} {how} {right}");
        }
        if self.draws.once_in(4) {
            let found = self.expression(depth + 1);
            text += &format!(" GROUP BY 1 HAVING COUNT(*) > {found}");
        }
        text
    }

    fn table(&mut self, depth: u32) -> String {
        let plain = ["t", "u", "app.t", "`t`", "t AS r", "t LEFT JOIN u USING (a)", "t FORCE INDEX (i)"];
        if depth < 2 && self.draws.once_in(4) {
            let inner = self.query(depth + 1);
            return format!("({inner}) AS d (y)");
        }
        self.draws.one_of(&plain).to_owned()
    }

    fn expression(&mut self, depth: u32) -> String {
        let shape = if self.is_dirty() {
            self.draws.one_of(DIRTY)
        } else if depth > 3 || self.draws.once_in(3) {
            self.draws.one_of(LITERALS)
        } else {
            match self.draws.below(8) {
                0 => "($ + $)",
                1 => "($ AND NOT $)",
                2 => "($ IN ($, $))",
                3 => "CASE WHEN $ THEN $ ELSE $ END",
                4 => "EXISTS (SELECT 1 FROM u WHERE u.b = $)",
                5 => "($ BETWEEN $ AND $)",
                _ => self.draws.one_of(BUILT_IN),
            }
        };
        let mut text = String::new();
        for (number, part) in shape.split('$').enumerate() {
            if number > 0 && !part.starts_with('.') {
                text += &self.expression(depth + 2);
            } else if number > 0 {
                text.push('$');
            }
            text += part;
        }
        text
    }

    fn write(&mut self) -> String {
        let value = self.expression(1);
        match self.draws.below(8) {
            0 => format!("INSERT INTO t (a, b) VALUES ({value}, 2)"),
            1 => format!("INSERT INTO t (a) {}", self.select(1)),
            2 => format!("REPLACE INTO t (a, b) VALUES (1, {value})"),
            3 => format!("UPDATE t SET b = {value} WHERE a = 1"),
            4 => format!("DELETE FROM t WHERE b = {value}"),
            5 => format!("INSERT IGNORE INTO app.t SET b = {value}"),
            6 => format!("INSERT INTO t (a) VALUES (1) ON DUPLICATE KEY UPDATE b = {value}"),
            _ => format!("UPDATE t JOIN u USING (a) SET t.b = {value}"),
        }
    }

    fn other(&mut self) -> String {
        self.draws
            .one_of(&[
                "CREATE TABLE x (a INT)",
                "CREATE TABLE x AS SELECT 1 AS a",
                "CREATE TEMPORARY TABLE x (a INT)",
                "ALTER TABLE t ADD COLUMN z INT",
                "DROP TABLE IF EXISTS x",
                "TRUNCATE TABLE t",
                "CREATE VIEW w AS SELECT 1",
                "CREATE INDEX j ON t (b)",
                "SET @v = 1",
                "SET autocommit = 0",
                "CALL p()",
                "START TRANSACTION",
                "COMMIT",
                "ROLLBACK",
                "SAVEPOINT s",
                "LOCK TABLES t WRITE",
                "UNLOCK TABLES",
                "FLUSH TABLES",
                "GRANT SELECT ON app.t TO 'u'@'%'",
                "USE app",
                "KILL 5",
                "ANALYZE TABLE t",
                "PREPARE s FROM 'SELECT 1'",
                "EXECUTE s",
                "DEALLOCATE PREPARE s",
            ])
            .to_owned()
    }

    /// The same text with other white space, comments, and cases of letters; strings stay as they are.
    fn respaced(&mut self, text: &str) -> String {
        let (mut out, mut quote) = (String::new(), None);
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            match (quote, character) {
                (None, ' ') => out += self.draws.one_of(BETWEEN),
                (None, letter) if letter.is_ascii_alphabetic() && self.draws.once_in(40) => {
                    out.push(letter.to_ascii_lowercase());
                }
                (Some(_), '\\') => {
                    out.push(character);
                    out.extend(characters.next());
                }
                (None, '\'' | '"' | '`') => {
                    quote = Some(character);
                    out.push(character);
                }
                (Some(open), character) => {
                    if open == character {
                        quote = None;
                    }
                    out.push(character);
                }
                (None, character) => out.push(character),
            }
        }
        out
    }
}
