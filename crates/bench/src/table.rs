//! The results: a table for terminals, JSON lines for programs.

use std::io::{self, Write};

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

/// One figure. The goal applies to the ratio if there is a baseline, otherwise to the value.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    pub axis: &'static str,
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    /// The machine's baseline, measured in the same run.
    pub floor: Option<f64>,
    pub goal: Option<Goal>,
}

#[derive(Serialize)]
struct FigureLine<'a> {
    axis: &'a str,
    name: &'a str,
    value: f64,
    unit: &'a str,
    floor: Option<f64>,
    ratio: Option<f64>,
    goal: Option<String>,
    met: Option<bool>,
}

impl Figure {
    pub fn new(axis: &'static str, name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { axis, name: name.into(), value, unit, floor: None, goal: None }
    }

    pub fn over(mut self, floor: f64) -> Self {
        self.floor = Some(floor);
        self
    }

    /// Set a goal for the ratio to the baseline, or for the value if there is no baseline.
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    pub fn ratio(&self) -> Option<f64> {
        self.floor.map(|floor| self.value / floor)
    }

    /// Whether the goal was met. `None` for figures without a goal, such as baselines.
    pub fn met(&self) -> Option<bool> {
        let judged = self.ratio().unwrap_or(self.value);
        self.goal.map(|goal| match goal {
            Goal::AtLeast(least) => judged >= least,
            Goal::AtMost(most) => judged <= most,
        })
    }

    fn goal_text(&self) -> Option<String> {
        let unit = if self.floor.is_some() { "×" } else { self.unit };
        self.goal.map(|goal| match goal {
            Goal::AtLeast(least) => format!("≥ {least} {unit}"),
            Goal::AtMost(most) => format!("≤ {most} {unit}"),
        })
    }

    fn line(&self) -> FigureLine<'_> {
        FigureLine {
            axis: self.axis,
            name: &self.name,
            value: self.value,
            unit: self.unit,
            floor: self.floor,
            ratio: self.ratio(),
            goal: self.goal_text(),
            met: self.met(),
        }
    }
}

pub fn write_json(figure: &Figure, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &figure.line())?;
    out.write_all(b"\n")
}

/// Write all figures as an aligned table.
pub fn write_table(figures: &[Figure], out: &mut dyn Write) -> io::Result<()> {
    let mut rows =
        vec![["axis", "what", "value", "", "baseline", "vs. baseline", "goal", "met"].map(str::to_owned)];
    rows.extend(figures.iter().map(cells));
    let widths: Vec<usize> =
        (0..8).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            let numeric = matches!(column, 2 | 4 | 5);
            line.push_str(&if numeric { format!("{pad}{cell}  ") } else { format!("{cell}{pad}  ") });
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    let missed = figures.iter().filter(|figure| figure.met() == Some(false)).count();
    let goals = figures.iter().filter(|figure| figure.met().is_some()).count();
    writeln!(out, "\n{} of {goals} goals met", goals - missed)
}

fn cells(figure: &Figure) -> [String; 8] {
    [
        figure.axis.to_owned(),
        figure.name.clone(),
        number(figure.value),
        figure.unit.to_owned(),
        figure.floor.map(number).unwrap_or_default(),
        figure.ratio().map(number).unwrap_or_default(),
        figure.goal_text().unwrap_or_default(),
        figure.met().map(|met| if met { "yes" } else { "NO" }.to_owned()).unwrap_or_default(),
    ]
}

/// Format without an exponent: with three decimals below 1, else with at least three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_applies_to_the_ratio_if_there_is_a_baseline() {
        let figure = Figure::new("append", "x", 300.0, "/s").over(400.0).goal(Goal::AtLeast(0.5));
        assert_eq!((figure.ratio(), figure.met()), (Some(0.75), Some(true)));
        let figure = Figure::new("context", "x", 3.0, "ms").goal(Goal::AtMost(1.0));
        assert_eq!((figure.ratio(), figure.met()), (None, Some(false)));
    }

    #[test]
    fn the_table_is_aligned_and_counts_the_goals() {
        let figures = [
            Figure::new("append", "one stream", 3_000.0, "/s").over(5_000.0).goal(Goal::AtLeast(0.5)),
            Figure::new("fork", "of a long session", 2.5, "ms").goal(Goal::AtMost(1.0)),
        ];
        let mut out = Vec::new();
        write_table(&figures, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let columns: Vec<Option<usize>> = text
            .lines()
            .take(3)
            .map(|line| line.find("what").or(line.find("one stream")).or(line.find("of a long")))
            .collect();
        assert_eq!(columns, [columns[0]; 3], "{text}");
        assert!(text.ends_with("1 of 2 goals met\n"), "{text}");
    }

    #[test]
    fn a_json_line_has_every_field() {
        let mut out = Vec::new();
        write_json(&Figure::new("disk", "bytes", 0.8, "B/B").goal(Goal::AtMost(0.9)), &mut out).unwrap();
        let line: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(line["met"], true);
        assert_eq!(line["floor"], serde_json::Value::Null);
    }
}
