//! The facts found by parsing a value.

/// The assumed place of the value in a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// In place of a number or another bare operand.
    Bare,
    /// Right after an operand.
    Behind,
    /// Inside a string in these quotes.
    Quoted(u8),
}

/// How parsing ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending<'v> {
    /// The value ended after an operand.
    Whole,
    /// The value ended where an operand was due.
    Unfinished,
    /// A comment hides the rest of the application's statement.
    Comment {
        /// Content of the comment.
        rest: &'v [u8],
        /// The comment's mark.
        mark: u8,
        /// Whether an operand was due.
        unfinished: bool,
    },
    /// The value ends inside a string that the application's own quote closes.
    Reopened {
        /// Content of that string.
        content: &'v [u8],
    },
    /// The value ended, except for a quote that would begin a string after an operand.
    Dangling,
    /// The statement ended: `;`.
    Semicolon,
    /// From some token on it is not SQL.
    #[default]
    Broken,
}

/// What a value does to the statement into which it is inserted.
#[derive(Clone, Debug, Default)]
pub struct Facts<'v> {
    /// How parsing ended.
    pub ending: Ending<'v>,
    /// Tokens read (count).
    pub tokens_count: u32,
    /// `and`, `or` and the like (count).
    pub logic_count: u32,
    /// `||` (count).
    pub pipes_count: u32,
    /// Comparisons of which both sides were read (count).
    pub compares_count: u32,
    /// Of these, comparisons of constants.
    pub constant_compares_count: u32,
    /// Of those, the ones introduced by `and`, `or`, `where` or `having`.
    pub tautologies_count: u32,
    /// Comparisons of constants in parentheses (count).
    pub grouped_compares_count: u32,
    /// Whether there is a comparison with a string that begins or ends in `%`.
    pub wildcard: bool,
    /// Comparison operators (count).
    pub signs_count: u32,
    /// Conditions that consist of a constant (count).
    pub constants_count: u32,
    /// Arithmetic operators (count).
    pub arithmetic_count: u32,
    /// Closing parentheses for which the application had the opening ones (count).
    pub popped_count: u32,
    /// Strings in quotes other than those around the value (count).
    pub other_texts_count: u32,
    /// Names read as operands (count).
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
    /// Whether a `;` separated statements.
    pub semicolon: bool,
    /// Whether another statement begins after it.
    pub separated: bool,
    /// Tokens before the first `;`.
    pub before_semicolon_count: u32,
    /// Whether the first token is `<`.
    pub begins_bracket: bool,
    /// Whether the last operator is `>`.
    pub ends_bracket: bool,
    /// Whether an operator before a query is missing, or the query's parentheses are.
    pub lacking: bool,
    /// Whether the value ends inside a string.
    pub cut_text: bool,
    /// A function that waits, writes or leaks data.
    pub hostile: bool,
    /// `sleep`.
    pub delay: bool,
    /// A function or variable that reveals something about the server.
    pub telling: bool,
    /// Ordinary SQL functions (count).
    pub functions_count: u32,
    /// Names from the database's own dictionary.
    pub dictionary: bool,
    /// `order by`, `group by`.
    pub sort: bool,
    /// Constants in `order by` and `group by` (count).
    pub sort_constants_count: u32,
    /// `where` or `having`.
    pub condition: bool,
    /// `limit` and the like.
    pub limit: bool,
    /// `into outfile`.
    pub into_file: bool,
    /// `procedure analyse()`.
    pub procedure: bool,
    /// `in boolean mode`.
    pub full_text: bool,
    /// `is null`, `in (…)`, `between`, `like` (count).
    pub predicates_count: u32,
    /// Comments between tokens, and MySQL's executable ones (count).
    pub obfuscation_count: u32,
    /// Numbers in hexadecimal notation.
    pub hex_count: u32,
}

/// Columns and tables of a `select`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Items (count).
    pub items_count: u32,
    /// Signs that an item is more than a name, such as numbers and calls, finished or not (count).
    pub rich_count: u32,
    /// Whether it has a `from`.
    pub from: bool,
    /// Whether it has a condition.
    pub condition: bool,
}
