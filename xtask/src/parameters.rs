//! How many parameters a function may have: more than a reader can remember should become one value with a
//! name.

use crate::tokens::{Kind, Token, closing, tokens, without_tests};
use crate::tree::{Finding, Tree};

/// Most parameters besides `self`. Each element of a tuple counts.
const MOST: usize = 6;

/// Finds functions of the product with too many parameters.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let is_product =
        |path: &str| path.starts_with("crates/") && path.contains("/src/") && !path.ends_with("tests.rs");
    let sources = tree.with_extension(&["rs"]).filter(|(path, _)| is_product(path));
    sources.flat_map(|(path, text)| too_many(path, text)).collect()
}

fn too_many(path: &str, text: &str) -> Vec<Finding> {
    let tokens = without_tests(&tokens(text));
    let mut findings = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        let (is_function, name) = (pair[0].text == "fn", pair[1]);
        if !is_function || pair[0].kind != Kind::Word || name.kind != Kind::Word {
            continue;
        }
        let Some(open) = opening(&tokens, at + 2) else { continue };
        let count = count(&tokens[open + 1..closing(&tokens, open)]);
        if count > MOST {
            let message = format!(
                "`{}` takes {count} things, at most {MOST} are expected; give them a name",
                name.text
            );
            findings.push(Finding::at(path, name.line, message));
        }
    }
    findings
}

/// Where the parameters open: after the type parameters, whose bounds have brackets of their own.
fn opening(tokens: &[Token<'_>], from: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(from) {
        match token.text {
            "<" => depth += 1,
            ">" => depth = depth.saturating_sub(1),
            "(" if depth == 0 => return Some(index),
            ";" | "{" => return None,
            _ => {}
        }
    }
    None
}

/// The number of parameters in a signature's brackets; each element of a tuple counts, `self` does not.
fn count(signature: &[Token<'_>]) -> usize {
    parts(signature).into_iter().map(elements).sum()
}

fn elements(parameter: &[Token<'_>]) -> usize {
    let Some(colon) = parameter.iter().position(|token| token.text == ":") else {
        return usize::from(!parameter.iter().any(|token| token.text == "self"));
    };
    if parameter[..colon].iter().any(|token| token.text == "self") {
        return 0;
    }
    let of = &parameter[colon + 1..];
    let borrows =
        |token: &&Token<'_>| token.text == "&" || token.text == "mut" || token.kind == Kind::Lifetime;
    let inner = &of[of.iter().take_while(borrows).count()..];
    match inner.first() {
        Some(first) if first.text == "(" => parts(&inner[1..closing(inner, 0)]).len().max(1),
        _ => 1,
    }
}

/// Splits at the commas that are outside brackets.
fn parts<'a, 't>(tokens: &'a [Token<'t>]) -> Vec<&'a [Token<'t>]> {
    let (mut found, mut begin, mut at, mut depth) = (Vec::new(), 0, 0, 0_usize);
    while at < tokens.len() {
        match tokens[at].text {
            "(" | "[" | "{" => at = closing(tokens, at),
            "<" => depth += 1,
            ">" => depth = depth.saturating_sub(1),
            "," if depth == 0 => {
                found.push(&tokens[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    if begin < tokens.len() {
        found.push(&tokens[begin..]);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(signature: &str) -> usize {
        let tokens = tokens(signature);
        let open = opening(&tokens, 2).unwrap();
        count(&tokens[open + 1..closing(&tokens, open)])
    }

    #[test]
    fn self_is_no_parameter_and_a_tuple_is_as_many_as_it_holds() {
        assert_eq!(counted("fn a(&mut self, b: B, c: &C) {}"), 2);
        assert_eq!(counted("fn a(self: Rc<Self>, (b, c): (B, &[C]), d: &'a (E, F)) {}"), 4);
        assert_eq!(counted("fn a() {}"), 0);
        assert_eq!(counted("fn a(&self,) {}"), 0);
    }

    #[test]
    fn commas_of_types_and_closures_separate_no_parameters() {
        let closure = "fn a<F: Fn(A, B) -> C>(b: HashMap<D, E>, c: impl FnOnce(F, G) -> H, d: [u8; 2]) {}";
        assert_eq!(counted(closure), 3);
    }

    #[test]
    fn a_function_with_seven_is_found_and_one_of_a_test_is_not() {
        let long = "fn long(a: A, (b, c): (B, C), d: D, e: E, f: F, g: G) {}\n";
        let text = format!("fn short(a: A) {{}}\n{long}#[cfg(test)]\nmod tests {{ {long} }}\n");
        let tree = Tree::of(&[("crates/weir-a/src/b.rs", &text), ("lab/src/main.rs", long)]);
        let message = "`long` takes 7 things, at most 6 are expected; give them a name";
        assert_eq!(check(&tree), [Finding::at("crates/weir-a/src/b.rs", 2, message)]);
    }
}
