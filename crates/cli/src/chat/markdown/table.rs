//! Draws a complete table. Pure.

use anstyle::Style;

use super::inline;
use super::wrap::{WrappedRow, wrap};
use crate::render::{BOLD, DIM};

/// Minimum width of a column.
const COLUMN_MIN: usize = 6;
/// Maximum number of columns drawn as a table.
const COLUMNS_MAX: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Alignment {
    Left,
    Right,
}

/// The lines of a table, or None if the rows are not a table.
pub fn draw(rows: &[String], width: usize) -> Option<Vec<String>> {
    let alignments = alignments_of(rows.get(1)?)?;
    let head = cells_of(&rows[0]);
    if head.len() != alignments.len() || alignments.len() > COLUMNS_MAX {
        return None;
    }
    let body = rows[2..].iter().map(|row| cells_of(row));
    let cells: Vec<Vec<String>> = std::iter::once(head).chain(body).collect();
    let widths = fit_widths(&cells, alignments.len(), width);
    let mut lines = draw_row(&cells[0], &widths, &alignments, BOLD);
    let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
    lines.push(format!("{DIM}{}{DIM:#}", rule.join("─┼─")));
    lines.extend(cells[1..].iter().flat_map(|row| draw_row(row, &widths, &alignments, Style::new())));
    Some(lines)
}

fn alignments_of(row: &str) -> Option<Vec<Alignment>> {
    let alignment = |cell: &String| {
        let dashes = cell.trim_matches(':');
        let is_rule = !dashes.is_empty() && dashes.chars().all(|c| c == '-');
        is_rule.then_some(if cell.ends_with(':') && !cell.starts_with(':') {
            Alignment::Right
        } else {
            Alignment::Left
        })
    };
    cells_of(row).iter().map(alignment).collect()
}

/// Split a row into cells. A bar in code or after a backslash belongs to its cell.
fn cells_of(row: &str) -> Vec<String> {
    let row = row.trim();
    let row = row.strip_prefix('|').unwrap_or(row);
    let (mut cells, mut cell, mut in_code, mut escaped) = (Vec::new(), String::new(), false, false);
    for c in row.chars() {
        match c {
            '|' if escaped => {
                cell.pop();
                cell.push('|');
            }
            '|' if !in_code => cells.push(std::mem::take(&mut cell).trim().to_owned()),
            _ => {
                in_code ^= c == '`';
                cell.push(c);
            }
        }
        escaped = c == '\\' && !escaped;
    }
    if !cell.trim().is_empty() {
        cells.push(cell.trim().to_owned());
    }
    cells
}

fn fit_widths(rows: &[Vec<String>], columns: usize, width: usize) -> Vec<usize> {
    let natural = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell_rows(cell, usize::MAX, Style::new()).iter().map(|row| row.width).sum())
            .max()
            .unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..columns).map(|column| natural(column).max(1)).collect();
    let available = width.saturating_sub(3 * (columns - 1)).max(columns);
    while widths.iter().sum::<usize>() > available {
        let Some(widest) = widths.iter_mut().max() else { break };
        if *widest <= COLUMN_MIN {
            break;
        }
        *widest -= 1;
    }
    widths
}

fn cell_rows(cell: &str, width: usize, style: Style) -> Vec<WrappedRow> {
    wrap(&inline::parse(cell, style).spans, width)
}

fn draw_row(cells: &[String], widths: &[usize], alignments: &[Alignment], style: Style) -> Vec<String> {
    let empty = String::new();
    let cells: Vec<Vec<WrappedRow>> =
        (0..widths.len()).map(|at| cell_rows(cells.get(at).unwrap_or(&empty), widths[at], style)).collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or(1).max(1);
    let bar = format!(" {DIM}│{DIM:#} ");
    let line = |at: usize| {
        let parts = cells.iter().zip(widths.iter().zip(alignments)).map(|(rows, (width, alignment))| {
            let (text, used) = rows.get(at).map_or((String::new(), 0), |row| (row.paint(), row.width));
            let pad = " ".repeat(width.saturating_sub(used));
            if *alignment == Alignment::Right { format!("{pad}{text}") } else { format!("{text}{pad}") }
        });
        parts.collect::<Vec<_>>().join(&bar).trim_end().to_owned()
    };
    (0..height).map(line).collect()
}
