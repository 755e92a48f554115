//! Does this text carry SQL into a statement that was not meant to have it?
