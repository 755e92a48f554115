//! Tables of text, for people.

/// Formats a table whose columns are as wide as their widest cell. `dress` may colour a padded cell.
pub fn table(rows: &[Vec<String>], dress: impl Fn(usize, String) -> String) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row
            .iter()
            .enumerate()
            .map(|(column, cell)| dress(column, format!("{cell:<width$}", width = widths[column])));
        let line = cells.collect::<Vec<_>>().join("  ");
        out.push_str("  ");
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_trailing_blanks() {
        let rows = [vec!["a".to_owned(), "state".to_owned()], vec!["10.0.0.1:80".to_owned(), String::new()]];
        assert_eq!(table(&rows, |_, text| text), "  a            state\n  10.0.0.1:80\n");
    }
}
