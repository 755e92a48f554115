//! Parses a value as the text that follows the place of a literal in a statement, and records what it would
//! change there.
//!
//! Two states are enough: an operand is due, or an operand has just been read. Almost every sentence of a
//! natural language fails here at its second or third word, because two words in a row are not an expression.
//! Parentheses are kept on a stack that is as deep as they are nested.

use crate::sqli::facts::{Context, Ending, Facts, List};
use crate::sqli::statement::begins_statement;
use crate::sqli::token::{Token, Tokens};
use crate::sqli::words::{Verb, Word};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Root,
    Group,
    Call(Word),
    Query(Part),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    List,
    From,
    Condition,
    Sort,
}

/// To whom the `select` of a query belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Nobody,
    Union,
    Inner,
    Stacked,
}

/// A pair of parentheses, or the statement itself.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub(super) kind: Kind,
    pub(super) whose: Whose,
    /// Whether an operand is due.
    pub(super) due: bool,
    /// Whether nothing has been read in it yet.
    fresh: bool,
    /// Whether all operands since the last boundary were constants.
    pub(super) constant: bool,
    /// Whether the left side of a comparison was constant; `None` without a comparison.
    compared: Option<bool>,
    /// Whether anything followed the comparison operator.
    answered: bool,
    /// Boundaries (`and`) that belong to `between`.
    pub(super) betweens: u8,
    /// Whether the item already has an alias.
    pub(super) named: bool,
    /// Whether `case` was read.
    pub(super) cased: bool,
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
            answered: false,
            betweens: 0,
            named: false,
            cased: false,
        }
    }
}

/// Kinds of operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    Constant,
    /// A string: a constant too.
    Text,
    Name,
    /// A call, a variable, all columns.
    Other,
}

/// Stops parsing.
pub(crate) struct Stop;

/// The parser.
pub(crate) struct Reader<'v, 's> {
    pub(crate) tokens: Tokens<'v>,
    pub(super) context: Context,
    /// Whether a letter comes right after the quote.
    stuck: bool,
    pub(super) below: &'s mut Vec<Frame>,
    pub(super) frame: Frame,
    pub(crate) facts: Facts<'v>,
}

/// Parses `value` from `at` on, as it would be read in `context`. O(n) in time; `stack` is a reusable buffer,
/// with at most one entry per byte.
pub fn read<'v>(value: &'v [u8], at: usize, context: Context, stack: &mut Vec<Frame>) -> Facts<'v> {
    stack.clear();
    let mut root = Frame::new(Kind::Root);
    root.due = context == Context::Bare;
    // The operand with which the application compares the value is not a constant.
    root.constant = context == Context::Bare;
    let tokens = Tokens::new(value, at);
    let stuck = value.get(at).is_some_and(u8::is_ascii_alphabetic);
    let mut reader = Reader { tokens, context, stuck, below: stack, frame: root, facts: Facts::default() };
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

    pub(super) fn stop(&mut self, ending: Ending<'v>) -> Result<(), Stop> {
        self.facts.ending = ending;
        Err(Stop)
    }

    pub(super) fn broken(&mut self) -> Result<(), Stop> {
        self.stop(Ending::Broken)
    }

    fn operand_due(&mut self, token: Token<'v>, fresh: bool) -> Result<(), Stop> {
        match token {
            Token::Number => self.operand(Operand::Constant),
            Token::Text { closed: true, quote, content } => {
                self.note_wildcard(content);
                self.facts.other_texts_count += u32::from(self.context != Context::Quoted(quote));
                self.operand(Operand::Text)
            }
            Token::Text { content, quote, closed: false } => {
                self.operand(Operand::Text)?;
                self.facts.cut_text = true;
                self.note_wildcard(content);
                match self.context == Context::Quoted(quote) {
                    true => self.stop(Ending::Reopened { content }),
                    false => self.stop(Ending::Unfinished),
                }
            }
            Token::Word(word, _) => self.word_due(word, fresh),
            Token::Name => self.name(Word::Name),
            Token::Variable { of_server } => {
                self.facts.telling |= of_server;
                self.facts.functions_count += u32::from(of_server);
                self.facts.begins_number |= self.facts.tokens_count == 1;
                self.operand(Operand::Other)
            }
            Token::Sign => {
                self.facts.arithmetic_count += 1;
                // A sign does not count as content of a frame: `(-1)`.
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

    fn word_due(&mut self, word: Word, fresh: bool) -> Result<(), Stop> {
        match word {
            Word::Select if fresh && matches!(self.frame.kind, Kind::Group | Kind::Call(_)) => {
                self.begin_query(Whose::Inner);
                Ok(())
            }
            // Without its parentheses, as in a first attempt: `1 and select …`.
            Word::Select if self.frame.kind == Kind::Root && self.facts.begins_number => {
                self.facts.lacking = true;
                self.begin_query(Whose::Inner);
                Ok(())
            }
            Word::Verb(Verb::If)
                if fresh
                    && self.context == Context::Bare
                    && begins_statement(&self.tokens, Verb::If, b"", false) =>
            {
                self.facts.stacked = true;
                self.facts.separated = true;
                self.stop(Ending::Semicolon)
            }
            Word::Union if fresh && self.facts.lacking => self.union(),
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
            // Only a sign before it: `-union(select …)`.
            Word::Union if self.frame.kind == Kind::Root && self.facts.arithmetic_count > 0 => self.union(),
            Word::Quantifier if fresh && matches!(self.frame.kind, Kind::Call(_)) => Ok(()),
            Word::Literal if !self.tokens.opens_next() => {
                self.facts.begins_word |= self.facts.tokens_count == 1;
                self.operand(Operand::Constant)
            }
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
            // Words with another meaning that are functions too: left(…), if(…), replace(…).
            Word::Join | Word::Verb(_) | Word::Arithmetic | Word::Values | Word::Compare
                if self.tokens.opens_next() =>
            {
                self.name(Word::Function)
            }
            _ => self.broken(),
        }
    }

    fn note_wildcard(&mut self, content: &[u8]) {
        let has_wildcard = content.first() == Some(&b'%') || content.last() == Some(&b'%');
        self.facts.wildcard |= has_wildcard && self.frame.compared.is_some();
    }

    /// A name with all its parts, and the call that it may begin.
    pub(super) fn name(&mut self, word: Word) -> Result<(), Stop> {
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
            if matches!(class, Word::Function | Word::Telling | Word::Hostile | Word::Delay)
                && self.frame.kind == Kind::Query(Part::List)
                && let Some(list) = self.list()
            {
                list.rich_count += 1;
            }
            self.push(Kind::Call(class));
            return Ok(());
        }
        self.facts.names_count += 1;
        self.operand(Operand::Name)
    }

    fn note_name(&mut self, word: Word) {
        self.facts.dictionary |= word == Word::Dictionary;
    }

    pub(super) fn push(&mut self, kind: Kind) {
        self.below.push(self.frame);
        self.frame = Frame::new(kind);
    }

    /// `(` begins a statement.
    pub(crate) fn push_group(&mut self) {
        self.settle();
        self.push(Kind::Group);
    }

    /// Turns the frame into a query whose items follow.
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

    pub(super) fn begin_query(&mut self, whose: Whose) {
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
        self.frame.answered |= self.frame.compared.is_some();
        self.facts.hostile |= self.frame.kind == Kind::Call(Word::Hostile);
        self.frame.constant &= matches!(operand, Operand::Constant | Operand::Text);
        if self.context == Context::Bare && self.facts.logic_count == 0 && self.facts.names_count == 0 {
            self.facts.begins_number |= operand == Operand::Constant;
            self.facts.begins_word |= operand == Operand::Text && self.facts.tokens_count == 1;
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

    pub(super) fn list(&mut self) -> Option<&mut List> {
        match self.frame.whose {
            Whose::Nobody => None,
            Whose::Union => Some(&mut self.facts.union_list),
            Whose::Inner => Some(&mut self.facts.inner_list),
            Whose::Stacked => Some(&mut self.facts.stacked_list),
        }
    }

    /// A condition or an item has ended.
    pub(super) fn settle(&mut self) {
        let frame = &mut self.frame;
        if frame.due && !frame.answered {
            // A comparison without its right side does not count.
        } else if let Some(left) = frame.compared {
            self.facts.compares_count += 1;
            let is_constant = left && frame.constant;
            self.facts.constant_compares_count += u32::from(is_constant);
            self.facts.grouped_compares_count += u32::from(is_constant && frame.kind == Kind::Group);
            let is_joined = self.facts.logic_count > 0 || self.facts.condition;
            self.facts.tautologies_count += u32::from(is_constant && is_joined);
        } else if frame.constant {
            self.facts.constants_count += 1;
            self.facts.sort_constants_count += u32::from(frame.kind == Kind::Query(Part::Sort));
        }
        frame.compared = None;
        frame.answered = false;
        frame.constant = true;
        frame.named = false;
    }

    /// Parentheses close.
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

    pub(super) fn due(&mut self) -> Result<(), Stop> {
        self.frame.due = true;
        Ok(())
    }

    pub(super) fn compare(&mut self) -> Result<(), Stop> {
        if self.frame.compared.is_none() {
            self.frame.compared = Some(self.frame.constant);
            self.frame.constant = true;
        }
        self.due()
    }

    pub(super) fn logic(&mut self) -> Result<(), Stop> {
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
                self.facts.signs_count += 1;
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
                self.settle();
                self.due()
            }
            Token::Word(word, text) => self.word_read(word, text),
            Token::Name => self.other_name(),
            Token::Text { closed: true, .. } if self.frame.kind == Kind::Query(Part::List) => {
                self.other_name()
            }
            Token::Text { content, quote, closed: false } if self.context == Context::Quoted(quote) => {
                // The application's own quote after an operand is an error, but not necessarily one that the
                // sender intended.
                match content.is_empty() {
                    true => self.stop(Ending::Dangling),
                    false => self.broken(),
                }
            }
            // An operator that got lost on the way, or is a comment.
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

    /// Whether the word just read comes right after the quote.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck && self.facts.tokens_count == 1
    }

    fn may_lack_operator(&self) -> bool {
        let begins = self.is_quoted() || self.facts.begins_number || self.facts.popped_count > 0;
        let is_query = matches!(self.tokens.peek(), Token::Word(Word::Select | Word::Union, _));
        is_query && begins && self.below.is_empty() && self.frame.kind == Kind::Root
    }

    /// An alias of an item or a table.
    pub(super) fn other_name(&mut self) -> Result<(), Stop> {
        let may = matches!(self.frame.kind, Kind::Query(Part::List | Part::From)) && !self.frame.named;
        if !may {
            return self.broken();
        }
        self.frame.named = true;
        Ok(())
    }
}
