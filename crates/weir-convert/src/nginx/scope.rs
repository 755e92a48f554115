//! What holds in a block: its own directives, else those of the blocks around it.

use super::tree::NginxDirective;

/// A block with those around it. A directive that may be repeated (`proxy_set_header`, `add_header`, `allow`)
/// is taken over as a whole: one of that name in an inner block replaces all of the outer ones.
#[derive(Clone, Debug, Default)]
pub struct NginxScope<'c> {
    /// Outermost first.
    levels: Vec<&'c [NginxDirective]>,
}

impl<'c> NginxScope<'c> {
    /// The scope within this one.
    pub fn within(&self, block: &'c [NginxDirective]) -> NginxScope<'c> {
        let mut levels = self.levels.clone();
        levels.push(block);
        NginxScope { levels }
    }

    /// The innermost directives of a name.
    pub fn all(&self, name: &str) -> Vec<&'c NginxDirective> {
        self.any_of(&[name])
    }

    /// The directives of the innermost block that has any of these names, in their order.
    pub fn any_of(&self, names: &[&str]) -> Vec<&'c NginxDirective> {
        for level in self.levels.iter().rev() {
            let found: Vec<&NginxDirective> =
                level.iter().filter(|directive| names.contains(&directive.name.as_str())).collect();
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    /// The innermost directive of a name, the last where its block has several.
    pub fn one(&self, name: &str) -> Option<&'c NginxDirective> {
        self.all(name).last().copied()
    }

    /// The directives of a name in the innermost block alone.
    pub fn own(&self, name: &str) -> Vec<&'c NginxDirective> {
        let last = self.levels.last().copied().unwrap_or_default();
        last.iter().filter(|directive| directive.name == name).collect()
    }

    /// The directives of a name in all blocks, outermost first.
    pub fn everywhere(&self, name: &str) -> Vec<&'c NginxDirective> {
        self.levels.iter().flat_map(|level| level.iter()).filter(|directive| directive.name == name).collect()
    }
}
