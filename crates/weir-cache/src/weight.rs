//! Weights of objects in memory: what the allocator sets aside for them, not their length.
//!
//! Weir's allocator (mimalloc) has size classes: multiples of 16 bytes up to 64, then four between one power
//! of two and the next. A page holds one class and is not always full; [`OVERHEAD`] accounts for that.
//! `examples/memory.rs` compares the sum with the kernel's figure.

/// The cost of partly filled pages and of the allocator's own data, in 1024ths of what they hold.
const OVERHEAD: usize = 16;

/// Above this many bytes an allocation takes whole pages of its own.
const LARGE: usize = 128 << 10;

const PAGE: usize = 4096;

/// Memory for an allocation of `length` bytes, in bytes. 0 for 0.
pub(crate) fn of(length: usize) -> usize {
    let class = match length {
        0 => return 0,
        1..=64 => length.next_multiple_of(16),
        65..LARGE => {
            // Four steps to the next power of two.
            let step = length.next_power_of_two() / 8;
            length.next_multiple_of(step)
        }
        _ => length.next_multiple_of(PAGE),
    };
    class + class * OVERHEAD / 1024
}

/// The same for the content of a `Bytes`, including the reference count that it allocates once it is shared.
pub(crate) fn of_bytes(length: usize) -> usize {
    if length == 0 { 0 } else { of(length) + of(3 * size_of::<usize>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_the_allocators_classes() {
        let classes = [
            (0, 0),
            (1, 16),
            (16, 16),
            (17, 32),
            (64, 64),
            (65, 80),
            (80, 80),
            (81, 96),
            (97, 112),
            (128, 128),
            (129, 160),
            (161, 192),
            (256, 256),
            (257, 320),
            (513, 640),
            (1024, 1024),
            (1025, 1280),
        ];
        for (length, class) in classes {
            assert_eq!(of(length), class + class * OVERHEAD / 1024, "{length}");
        }
        assert!((0..300_000).all(|length| of(length) >= length && of(length) <= of(length + 1)));
    }
}
