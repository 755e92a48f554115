//! Ten thousand broken files: none makes the reader panic, every mistake has its place.
#![expect(clippy::disallowed_methods, reason = "tests read their files and the seed; the crate does not")]

mod mutate;

use std::path::Path;

#[test]
fn ten_thousand_broken_files_never_panic_and_every_mistake_has_its_place() {
    let seed = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_260_726);
    println!("WEIR_SEED={seed}");
    let mut seeds = Vec::new();
    // Good files outnumber the bad ones, so that a single mutation often leaves a file that is taken.
    for folder in ["good", "good", "good", "good", "good", "good", "good", "bad"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(folder);
        let mut paths: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        {
            seeds.push(std::fs::read_to_string(path).unwrap());
        }
    }
    let mut random = mutate::Seeded(seed);
    let taken = (0..10_000).filter(|_| mutate::holds(&mutate::broken(&seeds, &mut random))).count();
    // Both ways must have been taken often, or the generator has become too kind or too cruel to show
    // anything.
    assert!((200..9_800).contains(&taken), "{taken} of 10000 were taken");
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_text_is_read_without_panic(text in "\\PC*") {
        let _ = weir_config::parse("any.toml", &text);
    }
}
