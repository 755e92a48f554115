//! `[kernel]`: what all listeners on the kernel plane share.

use std::path::PathBuf;

use crate::keys::{Limit, Shape, count, text_or};
use crate::report::quote;
use crate::setting::table;
use crate::units::{Refused, refuse};

table! {
    /// What all listeners on the kernel plane share.
    pub struct Kernel at "[kernel]" {
        /// Most flows of each address family that are remembered at once. A full table forgets those that
        /// were silent longest.
        flows: u32 =
            count(Limit::new(
                1 << 18,
                1 << 10,
                1 << 25,
                "a flow has two entries of about 200 bytes in memory of the kernel's, taken at the start",
            ))
            .restart()
            .also(&["max_flows", "conntrack_max", "conn_tab_size"]);
        /// Where programs and tables are pinned, so that forwarding goes on while Weir is restarted. Below
        /// `/sys/fs/bpf`.
        directory: PathBuf = text_or(&DIRECTORY, "/sys/fs/bpf/weir").restart().also(&["path", "pin", "bpffs"]);
    }
}

/// Where Linux has its BPF file system.
const MOUNTED: &str = "/sys/fs/bpf/";

static DIRECTORY: Shape = Shape::new("a folder below `/sys/fs/bpf`", "/sys/fs/bpf/edge", directory);

fn directory(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a folder below `{MOUNTED}`", quote(text));
    let trimmed = text.trim_end_matches('/');
    let Some(below) = trimmed.strip_prefix(MOUNTED) else {
        return refuse(
            message,
            "only its BPF file system can hold them: expected \"/sys/fs/bpf/weir\", for example",
        );
    };
    if let Some(part) =
        below.split('/').find(|part| part.is_empty() || part.len() > 255 || part.contains(['.', '\0']))
    {
        let hint = format!(
            "names there have 1 to 255 bytes and no dot (bpf(2) keeps it for itself), and {} has not",
            quote(part)
        );
        return refuse(message, hint);
    }
    Ok(trimmed.to_owned())
}
