//! Asks for confirmation before a command that cannot be undone.

use std::io::{BufRead, IsTerminal};

use crate::app::App;
use crate::failure::{Failure, Result};

/// What a command asks for.
pub struct Confirmation<'a> {
    pub question: &'a str,
    /// What the command would do, if there is no terminal to ask on.
    pub would: &'a str,
    pub hint: &'a str,
    /// The result of any answer except yes.
    pub declined: Failure,
}

impl Confirmation<'_> {
    pub fn ask(self, app: &App) -> Result<()> {
        let can_ask = !app.out.is_json() && std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        if !can_ask {
            return Err(Failure::usage(format!("this would {}", self.would), self.hint));
        }
        eprint!("{} [y/N] ", self.question);
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(self.declined),
        }
    }
}
