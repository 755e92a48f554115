//! Charts as inline SVG, drawn by hand: bars with their spread for one point, lines with theirs for a sweep.
//!
//! Colours and fonts come from the page's style sheet by class, so that one drawing serves light and dark
//! themes.

use std::fmt::Write as _;

use super::number::plain;

/// One contender in a chart.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// Its name as a reader sees it.
    pub label: String,
    /// Which of the style sheet's colours it has.
    pub colour: usize,
    /// Its marks, in the order of the points.
    pub marks: Vec<Mark>,
    /// Published figures: (x, y).
    pub published: Vec<(f64, f64)>,
}

/// A median with the least and greatest round.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark {
    /// Place on the x axis; of no meaning in a bar chart.
    pub x: f64,
    /// The median.
    pub y: f64,
    /// The least round.
    pub low: f64,
    /// The greatest round.
    pub high: f64,
}

/// An axis of a line chart.
#[derive(Debug, Clone, Copy)]
pub struct Axis<'a> {
    /// Its title.
    pub title: &'a str,
    /// Whether it is logarithmic.
    pub logarithmic: bool,
}

/// Escapes text for HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Horizontal bars, one for each row that has a mark or a published figure. `width` is in pixels.
pub fn bars(rows: &[Row], unit: &str, width: f64) -> String {
    const ROW: f64 = 30.0;
    const LABEL: f64 = 132.0;
    const VALUE: f64 = 92.0;
    let rows: Vec<&Row> =
        rows.iter().filter(|row| !(row.marks.is_empty() && row.published.is_empty())).collect();
    let tops = rows.iter().flat_map(|row| {
        row.marks.iter().map(|mark| mark.high).chain(row.published.iter().map(|(_, value)| *value))
    });
    let ticks = ticks(0.0, tops.fold(0.0, f64::max), 4);
    let top = ticks.last().copied().unwrap_or(1.0);
    let (left, right) = (LABEL, width - VALUE);
    let place = |value: f64| left + (right - left) * value / top;
    let height = ROW * rows.len() as f64 + 26.0;
    let mut svg = open(width, height);
    let labelled = labelled_every(&ticks, (right - left) / (ticks.len() - 1).max(1) as f64);
    for (index, tick) in ticks.iter().enumerate() {
        let x = place(*tick);
        let _ =
            write!(svg, r#"<line class="grid" x1="{x:.1}" y1="2" x2="{x:.1}" y2="{:.1}"/>"#, height - 22.0);
        if index % labelled != 0 {
            continue;
        }
        let _ = write!(
            svg,
            r#"<text class="tick" x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            height - 7.0,
            plain(*tick)
        );
    }
    for (index, row) in rows.iter().enumerate() {
        let middle = ROW * index as f64 + ROW / 2.0 + 2.0;
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            left - 10.0,
            middle + 4.0,
            escaped(&row.label)
        );
        if let Some(mark) = row.marks.first() {
            svg.push_str(&bar(row, *mark, unit, [left, place(mark.y), middle]));
            svg.push_str(&whisker([place(mark.low), middle, place(mark.high), middle]));
        }
        if let Some((_, value)) = row.published.first() {
            svg.push_str(&diamond(
                row,
                place(*value),
                middle,
                &format!("published: {} {unit}", plain(*value)),
            ));
        }
        // At the edge, where no published figure can stand between a bar and its value.
        let said = row.marks.first().map_or_else(String::new, |mark| format!("{} {unit}", plain(mark.y)));
        let _ = write!(
            svg,
            r#"<text class="value" x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            width - 2.0,
            middle + 4.0,
            escaped(said.trim_end())
        );
    }
    svg.push_str("</svg>");
    svg
}

fn bar(row: &Row, mark: Mark, unit: &str, [left, right, middle]: [f64; 3]) -> String {
    let label = escaped(&row.label);
    let said = format!("{label}: {} {unit} ({} to {})", plain(mark.y), plain(mark.low), plain(mark.high));
    format!(
        r#"<rect class="bar c{}" x="{left:.1}" y="{:.1}" width="{:.1}" height="18" rx="2"><title>{said}</title></rect>"#,
        row.colour,
        middle - 9.0,
        (right - left).max(1.0)
    )
}

/// Lines over a swept parameter. `width` is in pixels.
pub fn lines(rows: &[Row], x: Axis<'_>, unit: &str, width: f64) -> String {
    const HEIGHT: f64 = 250.0;
    let frame = Frame::around(rows, x.logarithmic, width, HEIGHT);
    let mut svg = open(width, HEIGHT);
    frame.draw(&mut svg, rows, x, unit);
    for row in rows {
        svg.push_str(&frame.polyline(row));
        for mark in &row.marks {
            let (at, high, low) = (frame.x(mark.x), frame.y(mark.high), frame.y(mark.low));
            svg.push_str(&whisker([at, low, at, high]));
            let said = format!(
                "{} at {}: {} {unit} ({} to {})",
                escaped(&row.label),
                plain(mark.x),
                plain(mark.y),
                plain(mark.low),
                plain(mark.high)
            );
            let _ = write!(
                svg,
                r#"<circle class="dot c{}" cx="{at:.1}" cy="{:.1}" r="4"><title>{said}</title></circle>"#,
                row.colour,
                frame.y(mark.y)
            );
        }
        for (at, value) in &row.published {
            let said = format!("published at {}: {} {unit}", plain(*at), plain(*value));
            svg.push_str(&diamond(row, frame.x(*at), frame.y(*value), &said));
        }
    }
    svg.push_str("</svg>");
    svg
}

/// Curves of many points, without marks or spread, such as times by share of requests.
pub fn curves(rows: &[Row], x: Axis<'_>, unit: &str, width: f64) -> String {
    const HEIGHT: f64 = 250.0;
    let frame = Frame::around(rows, x.logarithmic, width, HEIGHT);
    let mut svg = open(width, HEIGHT);
    frame.draw(&mut svg, rows, x, unit);
    for row in rows {
        svg.push_str(&frame.polyline(row));
    }
    svg.push_str("</svg>");
    svg
}

/// Where values lie in a line chart.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x_range: (f64, f64),
    y_ticks: Vec<f64>,
    logarithmic: bool,
}

impl Frame {
    fn around(rows: &[Row], logarithmic: bool, width: f64, height: f64) -> Self {
        let published = rows.iter().flat_map(|row| &row.published).copied();
        let xs = rows
            .iter()
            .flat_map(|row| &row.marks)
            .map(|mark| mark.x)
            .chain(published.clone().map(|(x, _)| x));
        let ys =
            rows.iter().flat_map(|row| &row.marks).map(|mark| mark.high).chain(published.map(|(_, y)| y));
        let span = xs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        // A scale of factors has no zero.
        let logarithmic = logarithmic && span.0 > 0.0;
        let y_ticks = ticks(0.0, ys.fold(0.0, f64::max), 4);
        let digits = y_ticks.iter().map(|tick| plain(*tick).chars().count()).max().unwrap_or(1);
        Self {
            left: 18.0 + 7.5 * digits as f64,
            right: width - 14.0,
            top: 24.0,
            bottom: height - 42.0,
            x_range: span,
            y_ticks,
            logarithmic,
        }
    }

    fn x(&self, value: f64) -> f64 {
        let of = |value: f64| if self.logarithmic { value.ln() } else { value };
        let (low, high) = (of(self.x_range.0), of(self.x_range.1));
        let share = if high > low { (of(value) - low) / (high - low) } else { 0.5 };
        // The outermost marks keep clear of the frame.
        self.left + 10.0 + (self.right - self.left - 20.0) * share
    }

    fn y(&self, value: f64) -> f64 {
        let top = self.y_ticks.last().copied().unwrap_or(1.0);
        self.bottom - (self.bottom - self.top) * value / top
    }

    fn draw(&self, svg: &mut String, rows: &[Row], x: Axis<'_>, unit: &str) {
        for tick in &self.y_ticks {
            let y = self.y(*tick);
            let _ = write!(
                svg,
                r#"<line class="grid" x1="{:.1}" y1="{y:.1}" x2="{:.1}" y2="{y:.1}"/>"#,
                self.left, self.right
            );
            let _ = write!(
                svg,
                r#"<text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
                self.left - 6.0,
                y + 4.0,
                plain(*tick)
            );
        }
        let mut last = f64::NEG_INFINITY;
        for value in self.x_ticks(rows) {
            let at = self.x(value);
            let text = plain(value);
            let half = text.chars().count() as f64 * 3.5 + 3.0;
            if at - half < last {
                continue;
            }
            last = at + half;
            let _ = write!(
                svg,
                r#"<line class="grid" x1="{at:.1}" y1="{:.1}" x2="{at:.1}" y2="{:.1}"/>"#,
                self.bottom,
                self.bottom + 4.0
            );
            let _ = write!(
                svg,
                r#"<text class="tick" x="{at:.1}" y="{:.1}" text-anchor="middle">{text}</text>"#,
                self.bottom + 17.0
            );
        }
        let middle = (self.left + self.right) / 2.0;
        let _ = write!(
            svg,
            r#"<text class="axis" x="{middle:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            self.bottom + 35.0,
            escaped(x.title)
        );
        let _ = write!(svg, r#"<text class="axis" x="0" y="12">{}</text>"#, escaped(unit));
    }

    fn polyline(&self, row: &Row) -> String {
        let point = |mark: &Mark| format!("{:.1},{:.1}", self.x(mark.x), self.y(mark.y));
        let points: Vec<String> = row.marks.iter().map(point).collect();
        format!(
            r#"<polyline class="line c{}" points="{}"><title>{}</title></polyline>"#,
            row.colour,
            points.join(" "),
            escaped(&row.label)
        )
    }

    /// The swept values themselves when they are few; round numbers for a curve.
    fn x_ticks(&self, rows: &[Row]) -> Vec<f64> {
        let mut values: Vec<f64> = rows.iter().flat_map(|row| &row.marks).map(|mark| mark.x).collect();
        values.extend(rows.iter().flat_map(|row| &row.published).map(|(x, _)| *x));
        values.sort_by(f64::total_cmp);
        values.dedup();
        if values.len() > 16 { ticks(self.x_range.0, self.x_range.1, 5) } else { values }
    }
}

fn open(width: f64, height: f64) -> String {
    format!(
        r#"<svg viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img">"#
    )
}

/// The span from least to greatest, with a short stroke across each end.
fn whisker([x1, y1, x2, y2]: [f64; 4]) -> String {
    let (across_x, across_y) = if y1 == y2 { (0.0, 4.0) } else { (4.0, 0.0) };
    let stroke = |x1: f64, y1: f64, x2: f64, y2: f64| {
        format!(r#"<line class="whisker" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#)
    };
    let end = |x: f64, y: f64| stroke(x - across_x, y - across_y, x + across_x, y + across_y);
    [stroke(x1, y1, x2, y2), end(x1, y1), end(x2, y2)].concat()
}

fn diamond(row: &Row, x: f64, y: f64, said: &str) -> String {
    format!(
        r#"<path class="published c{}" d="M{x:.1} {:.1}l6 6l-6 6l-6 -6z"><title>{}: {}</title></path>"#,
        row.colour,
        y - 6.0,
        escaped(&row.label),
        escaped(said)
    )
}

/// Every how many `ticks`, which are `pitch` pixels apart, there is room for a label.
fn labelled_every(ticks: &[f64], pitch: f64) -> usize {
    const DIGIT: f64 = 7.0;
    const GAP: f64 = 8.0;
    let digits = ticks.iter().map(|tick| plain(*tick).chars().count()).max().unwrap_or(1);
    (((digits as f64).mul_add(DIGIT, GAP) / pitch).ceil() as usize).max(1)
}

/// Round numbers from at most `low` to at least `high`, about `count` steps of 1, 2 or 5 times a power of
/// ten.
fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    if high <= low || !(high - low).is_finite() {
        return vec![low, low + 1.0];
    }
    let rough = (high - low) / count as f64;
    let power = 10_f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let first = (low / step).floor();
    let last = (high / step - 1e-9).ceil();
    (0..=(last - first) as usize).map(|index| (first + index as f64) * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_would_touch_are_left_out() {
        let ticks = [0.0, 10_000.0, 20_000.0, 30_000.0, 40_000.0];
        assert_eq!(labelled_every(&ticks, 38.0), 2);
        assert_eq!(labelled_every(&ticks, 120.0), 1);
        assert_eq!(labelled_every(&[0.0, 1.0], 20.0), 1);
    }

    #[test]
    fn ticks_are_round_and_hold_both_ends() {
        assert_eq!(ticks(0.0, 95.47, 4), [0.0, 50.0, 100.0]);
        assert_eq!(ticks(0.0, 8.0, 4), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(ticks(0.0, 0.0, 4), [0.0, 1.0]);
    }

    fn row() -> Row {
        let mark = |x, y| Mark { x, y, low: y - 1.0, high: y + 1.0 };
        Row {
            label: "A & B".to_owned(),
            colour: 3,
            marks: vec![mark(1.0, 4.0), mark(1000.0, 8.0)],
            published: vec![(10.0, 6.0)],
        }
    }

    #[test]
    fn a_bar_chart_shows_value_spread_and_published_figure() {
        let svg = bars(&[row()], "µs", 500.0);
        assert!(svg.contains("A &amp; B: 4 µs (3 to 5)"), "{svg}");
        assert!(svg.contains("published: 6 µs"), "{svg}");
        assert_eq!(svg.matches("class=\"bar c3\"").count(), 1);
        assert_eq!(svg.matches("class=\"whisker\"").count(), 3);
    }

    #[test]
    fn on_an_axis_of_factors_ten_and_a_hundred_lie_a_third_apart() {
        let frame = Frame::around(&[row()], true, 520.0, 250.0);
        let width = frame.x(1000.0) - frame.x(1.0);
        assert!(((frame.x(10.0) - frame.x(1.0)) / width - 1.0 / 3.0).abs() < 1e-9);
        assert!(((frame.x(100.0) - frame.x(10.0)) / width - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_line_chart_has_a_mark_for_every_point_of_every_row() {
        let axis = Axis { title: "connections", logarithmic: true };
        let svg = lines(&[row(), Row { colour: 1, ..row() }], axis, "µs", 520.0);
        assert_eq!(svg.matches("<circle").count(), 4);
        assert_eq!(svg.matches("class=\"published").count(), 2);
        assert!(!svg.contains("NaN"), "{svg}");
    }
}
