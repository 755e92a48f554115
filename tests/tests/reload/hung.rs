//! A reload that has to look at a file on a disk that hangs.

use weir_tests::dialogue::{Backend, ONE_POOL, Setup, Signal, Weir, until};
use weir_tests::hung::Hung;

/// Earlier the thread that probes and answers the admin API waited for the disk.
#[test]
fn while_a_reload_waits_for_a_disk_probes_and_the_admin_api_go_on() {
    let backend = Backend::saying("ok");
    let gone = backend.address().to_string();
    let folder = std::env::temp_dir().join(format!("weir-hung-{}", backend.address().port()));
    std::fs::create_dir(&folder).expect("a folder");
    let config = format!(
        "[log]\naccess = \"@logs/access.log\"\n{ONE_POOL}health = {{ check = \"tcp\", interval = \"100ms\" }}\n"
    );
    let mut weir = Setup::of(&config).with("app", backend.address()).with("logs", folder.display()).start();
    let up = |weir: &Weir| weir.metric("weir_backend_up", &[("pool", "app"), ("backend", &gone)]);
    until("the backend to be up", || (up(&weir) == 1.0).then_some(()));
    weir.rewrites(&config.replace("100ms", "200ms"));
    let hung = Hung::at(&folder);
    weir.signals_pid(weir.pid(), Signal::HUP);
    drop(backend);
    until("the backend to be found gone", || (up(&weir) == 0.0).then_some(()));
    assert_eq!(weir.metric("weir_config_generation", &[]), 1.0, "{}", weir.story());
    drop(hung);
    weir.reaches("weir_config_generation", &[], 2.0);
    std::fs::remove_dir_all(&folder).expect("remove");
}

/// It waited without a word: nobody could tell what for.
#[test]
fn a_start_that_waits_for_a_disk_says_for_which_file() {
    let backend = Backend::saying("ok");
    let folder = std::env::temp_dir().join(format!("weir-hung-start-{}", backend.address().port()));
    std::fs::create_dir(&folder).expect("a folder");
    let hung = Hung::at(&folder);
    let config = format!("[admin]\nbind = \"@admin\"\ntoken_file = \"@folder/token\"\n{ONE_POOL}");
    let setup = Setup::of(&config).with("app", backend.address()).with("folder", folder.display());
    let mut weir = setup.launch();
    let said = format!("weir: waiting for {}/token: its disk, or a server of files", folder.display());
    until("a word about the file", || weir.stderr().contains(&said).then_some(()));
    // The file can't be read then.
    drop(hung);
    assert_eq!(weir.exits().code(), Some(2), "{}", weir.story());
    std::fs::remove_dir_all(&folder).expect("remove");
}
