//! Decides from the facts whether a value is an injection, and says why.
//!
//! Each rule requires two things: that the value plausibly leaves its place (it closes a quote or parenthesis
//! of the application, or stands where a number should), and that what it adds has a meaning that ordinary
//! text does not have by chance.

use crate::sqli::facts::{Context, Ending, Facts, List};

/// The rules by which a value is an injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It adds the rows of another query.
    Union,
    /// It makes a condition out of constants.
    Tautology,
    /// It adds a condition of its own.
    Condition,
    /// It hides the rest of the statement in a comment.
    Comment,
    /// It begins another statement.
    Stacked,
    /// It uses a query within the query.
    Subquery,
    /// It calls a function that waits, writes, runs programs or leaks data.
    Hostile,
    /// It asks for names from the database's own dictionary, or for the server's version and the like.
    Dictionary,
    /// It counts columns with `order by`, or groups.
    Sort,
    /// It writes a file, or uses `procedure analyse`.
    File,
    /// It turns the string in which it stands into an expression.
    Expression,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 11] = [
        Reason::Union,
        Reason::Tautology,
        Reason::Condition,
        Reason::Comment,
        Reason::Stacked,
        Reason::Subquery,
        Reason::Hostile,
        Reason::Dictionary,
        Reason::Sort,
        Reason::File,
        Reason::Expression,
    ];

    /// One word, for logs.
    pub fn word(self) -> &'static str {
        match self {
            Reason::Union => "union",
            Reason::Tautology => "tautology",
            Reason::Condition => "condition",
            Reason::Comment => "comment",
            Reason::Stacked => "stacked",
            Reason::Subquery => "subquery",
            Reason::Hostile => "function",
            Reason::Dictionary => "dictionary",
            Reason::Sort => "order-by",
            Reason::File => "file",
            Reason::Expression => "expression",
        }
    }

    /// What the value does, for explanations.
    pub fn sentence(self) -> &'static str {
        match self {
            Reason::Union => "adds the rows of another query with union select",
            Reason::Tautology => "makes a condition of constants, which is always true or always false",
            Reason::Condition => "adds a condition of its own",
            Reason::Comment => "ends the string and hides the rest of the statement in a comment",
            Reason::Stacked => "ends the statement and begins another one",
            Reason::Subquery => "asks with a query within the query",
            Reason::Hostile => "calls a function that waits, writes, runs programs or leaks through errors",
            Reason::Dictionary => "asks for the database's own names or settings",
            Reason::Sort => "counts columns with order by or group by",
            Reason::File => "has the result written to a file or analysed",
            Reason::Expression => "makes an expression of the string it stands in",
        }
    }
}

/// The facts that the rules examine.
struct Case<'f, 'v> {
    facts: &'f Facts<'v>,
    context: Context,
    /// The text before the quote that the value closes.
    head: &'v [u8],
}

/// Why a value is an injection, given the `facts` parsed in `context`; `None` if it is not. `head` is the
/// text before the quote that the value closes, or empty.
pub fn decide<'v>(facts: &Facts<'v>, context: Context, head: &'v [u8]) -> Option<Reason> {
    let case = Case { facts, context, head };
    let rules: [(bool, Reason); 11] = [
        (case.is_union(), Reason::Union),
        (case.is_stacked(), Reason::Stacked),
        (case.is_hostile(), Reason::Hostile),
        (case.is_file(), Reason::File),
        (case.is_dictionary(), Reason::Dictionary),
        (case.is_subquery(), Reason::Subquery),
        (case.is_tautology(), Reason::Tautology),
        (case.is_sort(), Reason::Sort),
        (case.is_condition(), Reason::Condition),
        (case.is_comment(), Reason::Comment),
        (case.is_expression(), Reason::Expression),
    ];
    let found = rules.into_iter().find(|(holds, _)| *holds).map(|(_, reason)| reason);
    // Closing brackets occur in any text; only a query or a call after one is no accident.
    let is_accident = |reason: &Reason| !matches!(reason, Reason::Union | Reason::Subquery | Reason::Hostile);
    found.filter(|reason| context != Context::Quoted(b']') || !is_accident(reason))
}

fn words_count(text: &[u8]) -> usize {
    text.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty()).count()
}

/// Whether a comment contains what attackers write there, at most a word, and not a sentence.
fn is_short(rest: &[u8]) -> bool {
    words_count(rest) <= 1
        && rest.len() <= 24
        && rest.iter().all(|byte| {
            byte.is_ascii_alphanumeric() || matches!(byte, b' ' | b'-' | b'+' | b'*' | b'/' | b'_')
        })
}

/// Whether the string at the end is at most one word.
fn is_plain(content: &[u8]) -> bool {
    words_count(content) <= 1 && !content.iter().any(|byte| matches!(byte, b'\'' | b'"'))
}

impl Case<'_, '_> {
    fn is_quoted(&self) -> bool {
        matches!(self.context, Context::Quoted(_))
    }

    /// The value is known to have left its place, or stands where a number is expected.
    fn is_anchored(&self) -> bool {
        self.is_quoted() || self.facts.begins_number || self.facts.popped_count > 0
    }

    /// At most one word comes before the quote, such as an account's name.
    fn is_terse(&self) -> bool {
        words_count(self.head) <= 1
            && !self
                .head
                .iter()
                .any(|byte| matches!(byte, b'=' | b'<' | b'>' | b'{' | b'[' | b'(' | b',' | b'$'))
    }

    /// Nothing comes before the quote.
    fn is_blank(&self) -> bool {
        self.head.trim_ascii().is_empty()
    }

    fn is_commented(&self) -> bool {
        matches!(self.facts.ending, Ending::Comment { unfinished: false, .. })
    }

    fn is_shortly_commented(&self) -> bool {
        matches!(self.facts.ending, Ending::Comment { rest, unfinished: false, .. } if is_short(rest))
    }

    fn is_reopened(&self) -> bool {
        matches!(self.facts.ending, Ending::Reopened { .. })
    }

    fn is_whole(&self) -> bool {
        matches!(self.facts.ending, Ending::Whole | Ending::Semicolon | Ending::Dangling)
    }

    fn is_clean(&self) -> bool {
        self.is_whole() || self.is_commented() || self.is_reopened()
    }

    fn joins(&self) -> u32 {
        self.facts.logic_count + self.facts.condition as u32
    }

    fn is_union(&self) -> bool {
        let List { items_count, rich_count, from, .. } = self.facts.union_list;
        let is_nested = self.facts.inner_list.items_count + self.facts.functions_count > 0;
        if !self.facts.union || (items_count == 0 && !is_nested && !self.is_anchored()) {
            return false;
        }
        if self.is_anchored() {
            let is_close = !self.is_quoted() || self.is_terse();
            let is_told = rich_count > 0 || items_count > 1 || self.facts.dictionary || is_nested;
            let is_over = self.is_clean() || self.facts.ending == Ending::Unfinished;
            return is_told || (is_close && (from || is_over));
        }
        let is_told = items_count > 1 || from || self.facts.dictionary || self.facts.obfuscation_count > 0;
        rich_count > 0 && (is_told || self.is_clean())
            || (is_nested && self.facts.functions_count > 0)
            || (self.facts.union_opened && (from || rich_count > 0))
            || (from && self.facts.union_list.condition)
            || self.facts.dictionary
            || (items_count > 1 && self.is_commented())
            || self.facts.obfuscation_count > 1
    }

    fn is_stacked(&self) -> bool {
        let list = self.facts.stacked_list;
        let is_close = self.is_quoted() && self.is_terse() && !self.head.ends_with(b" ");
        let is_separated =
            self.facts.separated && (self.is_anchored() || self.facts.before_semicolon_count <= 2);
        let is_query = match is_separated {
            true => list.rich_count > 0 || (list.from && self.is_clean()),
            // SQL in quotes is how programs are written; only what follows the quotes is suspicious.
            false => is_close && list.rich_count > 0 && (self.is_commented() || self.facts.stacked),
        };
        let is_begun =
            self.facts.stacked && (is_separated || is_close || (self.is_anchored() && !self.is_quoted()));
        is_query || is_begun || (self.facts.stacked && self.facts.hostile)
    }

    fn is_hostile(&self) -> bool {
        let facts = self.facts;
        let is_simple = self.is_anchored() || facts.names_count <= 1 || self.context == Context::Behind;
        let is_joined = facts.logic_count + facts.compares_count + facts.arithmetic_count > 0
            || facts.condition
            || self.is_quoted()
            || facts.popped_count > 0
            || self.is_commented()
            || facts.inner_list.items_count > 0;
        (facts.hostile && (is_joined || facts.constants_count > 0)) || (facts.delay && is_simple && is_joined)
    }

    fn is_file(&self) -> bool {
        self.facts.procedure || (self.facts.into_file && (self.is_anchored() || self.is_clean()))
    }

    fn is_dictionary(&self) -> bool {
        let facts = self.facts;
        let is_stacked = facts.stacked_list.items_count > 0 && facts.semicolon;
        let asks = facts.inner_list.items_count > 0 || facts.union || is_stacked;
        let tells = facts.telling
            && (facts.functions_count > 1
                || (facts.logic_count + facts.compares_count + facts.arithmetic_count > 0
                    && self.is_anchored()))
            && self.is_clean();
        tells || (facts.dictionary && (asks || (self.is_anchored() && self.joins() > 0)))
    }

    fn is_subquery(&self) -> bool {
        let List { items_count, rich_count, from, condition } = self.facts.inner_list;
        if items_count + rich_count == 0 {
            return false;
        }
        if self.is_quoted() {
            return rich_count > 0 || from || condition;
        }
        if self.context == Context::Behind && self.facts.condition {
            return false;
        }
        let is_joined = self.context == Context::Behind && self.facts.logic_count > 0;
        if self.facts.begins_number || self.facts.popped_count > 0 || is_joined {
            return rich_count > 0
                || condition
                || (from && (!self.facts.lacking || self.facts.obfuscation_count > 0));
        }
        let asks = from || condition || self.facts.functions_count + self.facts.constant_compares_count > 0;
        rich_count > 0 && asks && self.is_clean() || (from && condition && self.is_clean())
    }

    fn is_tautology(&self) -> bool {
        let facts = self.facts;
        if facts.constant_compares_count > 0 && facts.functions_count > 0 && self.is_clean() {
            return true;
        }
        if self.is_quoted() || facts.popped_count > 0 {
            return facts.constant_compares_count > 0 && self.joins() > 0;
        }
        if facts.grouped_compares_count > 0
            && facts.arithmetic_count > 0
            && facts.names_count == 0
            && facts.begins_number
            && self.is_clean()
        {
            return true;
        }
        let is_meant = facts.signs_count > 0
            || (facts.names_count == 0 && !facts.begins_word)
            || self.is_commented()
            || facts.obfuscation_count > 0;
        facts.tautologies_count > 0
            && is_meant
            && (self.context == Context::Behind
                || self.is_clean()
                || (facts.cut_text && facts.signs_count > 0))
    }

    fn is_sort(&self) -> bool {
        let facts = self.facts;
        facts.sort
            && facts.sort_constants_count + facts.functions_count > 0
            && (self.is_quoted() || facts.popped_count > 0 || facts.begins_number || self.is_commented())
            && self.is_clean()
            || (facts.sort && self.is_quoted() && self.is_commented())
            || (facts.full_text && self.is_quoted() && (self.is_clean() || facts.popped_count > 0))
    }

    /// A condition that does not consist of constants.
    fn is_condition(&self) -> bool {
        let facts = self.facts;
        if self.joins() == 0 {
            return false;
        }
        let judged = facts.compares_count + facts.predicates_count;
        let has_operand = facts.functions_count + facts.constants_count > 0;
        if self.is_quoted() {
            if self.is_commented() || self.is_reopened() {
                return judged > 0
                    || (has_operand
                        && (self.is_blank()
                            || (self.is_terse() && !self.is_sentence())
                            || self.is_shortly_commented()))
                    || (self.is_terse() && self.is_shortly_commented())
                    || (self.is_reopened() && self.is_terse() && !self.is_sentence());
            }
            return self.is_whole()
                && facts.logic_count > 0
                && (judged > 0 || has_operand)
                && self.is_terse();
        }
        let is_placed = facts.begins_number || facts.popped_count > 0;
        let is_built = facts.functions_count > 0 && facts.logic_count > 0 && self.context == Context::Bare;
        let is_meant =
            facts.signs_count + facts.pipes_count + facts.functions_count > 0 || self.is_commented();
        let is_built = is_built || (is_placed && is_meant);
        if is_built && self.is_clean() && judged > 0 {
            return true;
        }
        if ((facts.condition && !facts.begins_word) || facts.obfuscation_count > 0)
            && self.is_clean()
            && facts.logic_count > 0
            && facts.constants_count > 1
        {
            return true;
        }
        if is_placed && self.is_clean() && facts.pipes_count > 0 && facts.functions_count > 0 {
            return true;
        }
        // `or name like '%'`
        if facts.wildcard
            && facts.logic_count > 0
            && (is_placed || self.context == Context::Behind)
            && (self.is_clean() || facts.cut_text)
        {
            return true;
        }
        // Functions of constants only: `and isnull(1/0)`.
        if self.context == Context::Behind
            && self.is_clean()
            && facts.logic_count > 0
            && facts.names_count == 0
            && (facts.functions_count > 2
                || (facts.functions_count > 0 && facts.arithmetic_count + facts.compares_count > 0))
        {
            return true;
        }
        (is_placed || self.context == Context::Behind)
            && self.is_shortly_commented()
            && (judged > 0 || has_operand || facts.popped_count > 0)
    }

    fn is_sentence(&self) -> bool {
        matches!(self.facts.ending, Ending::Reopened { content } if self.is_word_in_quotes(content) || !is_plain(content))
    }

    /// One operator in quotes, as in a sentence about it: `the "is" stamp`, `the '&' sign`.
    fn is_word_in_quotes(&self, content: &[u8]) -> bool {
        let stands_apart = |byte: Option<&u8>| byte.is_none_or(|byte| byte.is_ascii_whitespace());
        let is_alone = self.head.is_empty() && content.is_empty();
        self.facts.tokens_count == 2
            && stands_apart(self.head.last())
            && stands_apart(content.first())
            && !(is_alone
                && self.context == Context::Quoted(b'\'')
                && self.facts.predicates_count + self.facts.logic_count == 0)
    }

    /// A quote, possibly parentheses, and a comment.
    fn is_comment(&self) -> bool {
        let facts = self.facts;
        let Ending::Comment { rest, mark, unfinished: false } = facts.ending else { return false };
        if self.is_quoted() && self.is_terse() {
            if !is_short(rest) || (mark == b'#' && !rest.is_empty() && !rest.starts_with(b" ")) {
                return false;
            }
            // `--help` in quotes is not a comment.
            let is_dashed = self.head.is_empty()
                && mark == b'-'
                && rest.first().is_some_and(|byte| !matches!(byte, b' ' | b'-' | b'+'));
            let is_only = facts.tokens_count == 1;
            return !(is_only && is_dashed)
                && (is_only || facts.popped_count > 0 || facts.semicolon || facts.limit);
        }
        facts.begins_number && facts.popped_count > 0 && facts.names_count == 0 && rest.is_empty()
    }

    fn is_expression(&self) -> bool {
        let facts = self.facts;
        if !self.is_quoted() {
            // `123 - ascii(substring(name, 1, 1))`
            return facts.begins_number
                && facts.arithmetic_count > 0
                && facts.functions_count > 1
                && self.is_clean();
        }
        let works =
            facts.arithmetic_count + facts.compares_count + facts.predicates_count + facts.pipes_count;
        match facts.ending {
            Ending::Reopened { content } => {
                let is_number = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
                let has_sense = facts.names_count == 0
                    || facts.tokens_count >= 6
                    || facts.functions_count + facts.compares_count > 0
                    || (is_number(self.head.last()) && is_number(content.first()));
                // A string in another language: `'| "a" | '`.
                let is_foreign =
                    facts.other_texts_count > 0 && facts.functions_count + facts.compares_count == 0;
                let is_bracketed = facts.begins_bracket && facts.ends_bracket;
                // Within a sentence, quotes have spaces on their outer sides.
                let is_apart = (self.head.ends_with(b" ") && !self.is_blank())
                    || (content.starts_with(b" ") && facts.predicates_count == 0);
                works > 0
                    && !is_apart
                    && !is_foreign
                    && has_sense
                    && !is_bracketed
                    && self.is_terse()
                    && is_plain(content)
                    && !self.is_word_in_quotes(content)
            }
            Ending::Comment { rest, unfinished: false, .. } => {
                works > 0 && (facts.functions_count > 0 || (self.is_terse() && is_short(rest)))
            }
            _ => facts.functions_count > 0 && works > 0 && self.is_whole() && self.is_terse(),
        }
    }
}
