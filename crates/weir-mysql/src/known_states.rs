//! Interns the session states that one worker has seen, so that equal states share one allocation. Whether an
//! idle connection is in the wanted state is then a comparison of two pointers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::state::TrackedState;

/// Most states that are kept; the oldest are dropped first. Applications have a handful: one per schema and
/// account.
const MOST: usize = 64;

/// The interned states of a worker.
#[derive(Debug, Default)]
pub struct KnownStates(RefCell<VecDeque<Rc<TrackedState>>>);

impl KnownStates {
    /// The interned state that equals this one; interns this one if there is none.
    pub fn shared(&self, state: &Rc<TrackedState>) -> Rc<TrackedState> {
        let mut known = self.0.borrow_mut();
        if let Some(found) = known.iter().find(|known| Rc::ptr_eq(known, state) || *known == state) {
            return found.clone();
        }
        if known.len() == MOST {
            known.pop_front();
        }
        known.push_back(state.clone());
        state.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_states_are_one_and_the_oldest_make_room() {
        let known = KnownStates::default();
        let state = |name: usize| Rc::new(TrackedState::of_schema(Some(name.to_string().as_bytes())));
        let first = known.shared(&state(0));
        assert!(Rc::ptr_eq(&first, &known.shared(&state(0))));
        (1..=MOST).for_each(|name| drop(known.shared(&state(name))));
        assert_eq!(known.0.borrow().len(), MOST);
        assert!(!Rc::ptr_eq(&first, &known.shared(&state(0))));
    }
}
