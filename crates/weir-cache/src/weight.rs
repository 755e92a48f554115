//! Weights in memory: not the length of things but what the allocator sets aside for them.
//!
//! Weir's allocator (mimalloc) has classes of sizes: multiples of 16 bytes up to 64, then four between one
//! power of two and the next. Pages hold one class each and are not always full; [`OVERHEAD`] stands for
//! that. `examples/memory.rs` compares the sum with what the kernel says.

/// The cost of pages that are not full and of the allocator's own books, in parts of 1024 of what they hold.
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

/// The same for the content of a `Bytes`, with the count of owners that it sets aside once it is shared.
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
