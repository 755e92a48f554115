//! `weir man`

use std::io::{self, Write};

use clap::Command;

/// The manual page of the program, with a section for each verb.
pub fn page(command: Command) -> io::Result<Vec<u8>> {
    let mut page_of_all = Vec::new();
    let out = &mut page_of_all;
    let man = clap_mangen::Man::new(command.clone());
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let mut section = Vec::new();
        let page = clap_mangen::Man::new(verb.clone());
        page.render_synopsis_section(&mut section)?;
        page.render_description_section(&mut section)?;
        page.render_options_section(&mut section)?;
        writeln!(out, ".SH \"WEIR {}\"", verb.get_name().to_uppercase())?;
        // Sections of the verb's own page become subsections here.
        out.write_all(String::from_utf8_lossy(&section).replace(".SH ", ".SS ").as_bytes())?;
    }
    man.render_extra_section(out)?;
    Ok(page_of_all)
}
