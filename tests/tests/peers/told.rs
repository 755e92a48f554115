//! What `weir check` and a reload tell of an address for other Weirs that something else has.

use weir_tests::dialogue::{free_address, run_tool, weir_binary};

use super::{Secret, ask, config, start};

const BY_USER: &str = r#"rate_limit = { rate = "6/1h", burst = 6, key = "header:x-user" }"#;

#[test]
fn an_address_that_a_listener_has_is_told_with_both_places_before_anything_listens() {
    let secret = Secret::of("a secret of two Weirs");
    let (own, other) = (free_address(), free_address());
    let mut weir = start(own, &[own, other], &secret, BY_USER);
    for of in ["web", "admin"] {
        let clash = config(&[own, other], BY_USER).replace("\"@peers\"", &format!("\"@{of}\""));
        weir.rewrites(&clash);
        for verb in ["check", "reload"] {
            let refused = weir.command(&[verb]);
            let told = format!("{}{}", refused.stdout, refused.stderr);
            assert_ne!(refused.code, 0, "{verb}: {told}");
            let address = weir.address(of);
            assert!(told.contains(&format!("{address} is bound twice")), "{verb}: {told}");
            assert!(
                told.contains("`[peers]` has it already (")
                    || told.contains("the admin API has it already ("),
                "{verb}: {told}"
            );
        }
    }
    // What was in force goes on.
    assert_eq!(ask(&weir, "ann"), 200);
    weir.reloads(&config(&[own, other], BY_USER));
}

#[test]
fn a_secret_that_others_may_read_is_told_with_its_line() {
    use std::os::unix::fs::PermissionsExt as _;
    let secret = Secret::of("a secret of two Weirs");
    std::fs::set_permissions(secret.path(), std::fs::Permissions::from_mode(0o640)).expect("a mode");
    let folder = std::env::temp_dir().join(format!("weir-told-{}", free_address().port()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("weir.toml");
    let text = config(&[free_address()], "")
        .replace("@peers", &free_address().to_string())
        .replace("@secret", &secret.path())
        .replace("@web", &free_address().to_string());
    std::fs::write(&file, text).expect("written");
    let told = run_tool(
        &weir_binary(),
        &["check", &file.display().to_string()],
        b"",
        weir_tests::dialogue::PATIENCE,
    );
    let said = format!("{}{}", told.stdout, told.stderr);
    assert_eq!(told.code, 2, "{said}");
    assert!(said.contains("weir.toml:5:") && said.contains("chmod"), "{said}");
    let _ = std::fs::remove_dir_all(&folder);
}
