//! What a word after an operand means.

use crate::sqli::facts::{Context, Ending};
use crate::sqli::grammar::{Kind, Part, Reader, Stop, Whose};
use crate::sqli::statement::begins_statement;
use crate::sqli::token::Token;
use crate::sqli::words::{Verb, Word};

impl<'v> Reader<'v, '_> {
    pub(super) fn word_read(&mut self, word: Word, text: &'v [u8]) -> Result<(), Stop> {
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
            Word::Link if self.frame.kind == Kind::Root && !text.eq_ignore_ascii_case(b"escape") => {
                self.broken()
            }
            Word::Branch | Word::Link => self.due(),
            Word::End if self.frame.cased => Ok(()),
            // The end of a `case` of the application.
            Word::End if self.below.is_empty() && self.frame.kind == Kind::Root => {
                self.facts.popped_count += 1;
                self.settle();
                self.frame.constant = false;
                Ok(())
            }
            Word::Suffix => Ok(()),
            Word::As => match self.tokens.next_token() {
                // `as` names an item; in `cast(… as …)` it names a type.
                Token::Word(..) | Token::Name | Token::Text { .. } => {
                    self.frame.named = true;
                    Ok(())
                }
                _ => self.broken(),
            },
            Word::Verb(verb) => {
                match self.may_begin(verb) && begins_statement(&self.tokens, verb, text, false) {
                    true => {
                        self.facts.stacked = true;
                        self.facts.hostile |= verb == Verb::WaitFor;
                        self.stop(Ending::Semicolon)
                    }
                    false if self.frame.kind != Kind::Root => self.other_name(),
                    false => self.broken(),
                }
            }
            // An operator that got lost on the way: `+` is a space in forms.
            Word::Delay | Word::Hostile
                if self.is_quoted() && self.below.is_empty() && self.tokens.opens_next() =>
            {
                self.name(word)
            }
            Word::Select if self.below.is_empty() && self.frame.kind == Kind::Root && self.is_quoted() => {
                self.begin_query(Whose::Stacked);
                Ok(())
            }
            _ => self.clause(word),
        }
    }

    pub(super) fn is_quoted(&self) -> bool {
        matches!(self.context, Context::Quoted(_))
    }

    /// Whether `verb` can begin a statement without a `;` before it, which only SQL Server accepts. `insert`,
    /// `create` and the like don't count: they are common words in shops and forums.
    fn may_begin(&self, verb: Verb) -> bool {
        let may_bare = matches!(verb, Verb::Update | Verb::Execute | Verb::Declare | Verb::If);
        let may_quoted = self.is_quoted() && !matches!(verb, Verb::Define | Verb::Delete);
        // Right after a quote, these are how programs write a statement, or how prose names a function:
        // `f'insert into …`, `'execute()'`.
        let is_text = self.is_stuck()
            && (verb == Verb::Insert || (verb == Verb::Execute && self.tokens.peek() == Token::Open));
        verb == Verb::WaitFor || (self.below.is_empty() && (may_bare || may_quoted) && !is_text)
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
            Token::Open | Token::Sign => {
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
    fn clause(&mut self, word: Word) -> Result<(), Stop> {
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
                self.settle();
                match self.list() {
                    Some(list) => list.condition = true,
                    None => {
                        self.facts.condition = true;
                        // Whatever the comparison before it was: `1+1=2 having fun`.
                        self.facts.compares_count = 0;
                    }
                }
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
                Token::Variable { .. } => {
                    self.facts.into_file = true;
                    Ok(())
                }
                Token::Word(Word::Name, _) | Token::Name => Ok(()),
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

    pub(super) fn union(&mut self) -> Result<(), Stop> {
        while let Token::Word(Word::Quantifier, _) | Token::Sign = self.tokens.peek() {
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
