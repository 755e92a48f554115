//! Facts that reading a value brings out.

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending<'v> {
    /// The value is over, and an operand was the last of it.
    Whole,
    /// The value is over, and an operand was due.
    Unfinished,
    /// A comment hides what the application has behind the value.
    Comment {
        /// Content of the comment.
        rest: &'v [u8],
        /// The comment's mark.
        mark: u8,
        /// Whether an operand was due.
        unfinished: bool,
    },
    /// The value ends within a string whose second quote is the application's own.
    Reopened {
        /// Content of that string.
        content: &'v [u8],
    },
    /// The value is over but for the quote that would begin a string behind an operand.
    Dangling,
    /// The statement is over: `;`.
    Semicolon,
    /// This is not SQL, from some token on.
    #[default]
    Broken,
}

/// Effects of a value on the statement that it is put into.
#[derive(Clone, Debug, Default)]
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
    /// Of those, the ones that an `and`, `or`, `where` or `having` brings in.
    pub tautologies_count: u32,
    /// Comparisons of constants in parentheses.
    pub grouped_compares_count: u32,
    /// Whether something is compared with a string that begins or ends in `%`.
    pub wildcard: bool,
    /// Comparison signs.
    pub signs_count: u32,
    /// Conditions that are a constant.
    pub constants_count: u32,
    /// Arithmetic.
    pub arithmetic_count: u32,
    /// Parentheses closed that the application has opened.
    pub popped_count: u32,
    /// Strings in other quotes than the ones that the value stands in.
    pub other_texts_count: u32,
    /// Names read as operands.
    pub names_count: u32,
    /// Whether the first operand of a bare value is a number or the like.
    pub begins_number: bool,
    /// Whether that first operand is a string or a word such as `true`.
    pub begins_word: bool,
    /// Whether `union` and its `select` were read.
    pub union: bool,
    /// Whether that `select` is in parentheses.
    pub union_opened: bool,
    /// Columns and tables of the `select` behind `union`.
    pub union_list: List,
    /// Columns and tables of a `select` in parentheses.
    pub inner_list: List,
    /// Columns and tables of a `select` that is a statement of its own.
    pub stacked_list: List,
    /// Whether a statement of its own was begun that is not a `select`.
    pub stacked: bool,
    /// Whether there was a `;` between statements.
    pub semicolon: bool,
    /// Whether another statement begins behind it.
    pub separated: bool,
    /// Tokens before the first `;`.
    pub before_semicolon_count: u32,
    /// Whether the first token is `<`.
    pub begins_bracket: bool,
    /// Whether the last operator is `>`.
    pub ends_bracket: bool,
    /// Whether an operator is missing before a query, or its parentheses are.
    pub lacking: bool,
    /// Whether the value ends within a string.
    pub cut_text: bool,
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
    /// Of what is sorted or grouped by, the constants.
    pub sort_constants_count: u32,
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

/// Columns and tables of a `select`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Items.
    pub items_count: u32,
    /// Whether one of them is not just a name: count of what shows it, such as numbers and calls, finished or
    /// not.
    pub rich_count: u32,
    /// Whether it says from where.
    pub from: bool,
    /// Whether it says under which condition.
    pub condition: bool,
}
