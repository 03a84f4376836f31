//! The reports of one attempt on their way from the spools to the collector.
//!
//! The collector's rule is written down anew here: the key is reporter and state, the first wins,
//! another end by the same reporter changes nothing. That the real store keeps it, and that its
//! view does not depend on the order, is tested beside it (`collector`).

use super::explore::Model;
use hermes_sidecar::task::{Reporter, State};

/// A report: who tells which state.
pub type Told = (Reporter, State);

/// Reports to be delivered, with so many misfortunes on the way.
pub struct Delivery {
    pub reports: Vec<Told>,
    pub faults: u8,
    /// A row is let go of only when the collector has said that it has it.
    pub waits_for_answer: bool,
    /// Of several ends by one reporter the first counts.
    pub first_wins: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mail {
    /// By report: it is still in the spool.
    owed: Vec<bool>,
    /// Reports and answers under way, in no order.
    network: Vec<Letter>,
    /// What the collector has committed.
    kept: Vec<Told>,
    /// The end by reporter that counts.
    applied: Vec<Told>,
    faults: u8,
    broken: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Letter {
    Report(usize),
    Answer(usize),
}

#[derive(Debug, Clone, Copy)]
pub enum Step {
    Send(usize),
    Arrive(Letter),
    Lose(Letter),
    Repeat(Letter),
    /// The collector dies after its commit and before its answer.
    DieAfterCommit(usize),
}

impl Model for Delivery {
    type State = Mail;
    type Step = Step;

    fn start(&self) -> Mail {
        Mail {
            owed: vec![true; self.reports.len()],
            network: Vec::new(),
            kept: Vec::new(),
            applied: Vec::new(),
            faults: self.faults,
            broken: None,
        }
    }

    fn steps(&self, mail: &Mail) -> Vec<Step> {
        let mut steps = Vec::new();
        for (report, owed) in mail.owed.iter().enumerate() {
            let mut under_way = mail.network.iter();
            let of_it = |letter: &Letter| matches!(letter, Letter::Report(of) | Letter::Answer(of) if *of == report);
            // Sent again only after a loss: otherwise the answer is waited for.
            if *owed && !under_way.any(of_it) {
                steps.push(Step::Send(report));
            }
        }
        for letter in &mail.network {
            steps.push(Step::Arrive(*letter));
            if mail.faults > 0 {
                steps.extend([Step::Lose(*letter), Step::Repeat(*letter)]);
                if let Letter::Report(report) = letter {
                    steps.push(Step::DieAfterCommit(*report));
                }
            }
        }
        steps
    }

    fn take(&self, mail: &Mail, step: Step) -> Mail {
        let mut mail = mail.clone();
        match step {
            Step::Send(report) => {
                if !self.waits_for_answer {
                    mail.owed[report] = false;
                }
                mail.post(Letter::Report(report));
            }
            Step::Arrive(Letter::Report(report)) => {
                mail.remove(Letter::Report(report));
                self.commit(&mut mail, self.reports[report]);
                mail.post(Letter::Answer(report));
            }
            Step::Arrive(Letter::Answer(report)) => {
                mail.remove(Letter::Answer(report));
                mail.owed[report] = false;
            }
            Step::Lose(letter) => {
                mail.faults -= 1;
                mail.remove(letter);
            }
            Step::Repeat(letter) => {
                mail.faults -= 1;
                mail.post(letter);
            }
            Step::DieAfterCommit(report) => {
                mail.faults -= 1;
                mail.remove(Letter::Report(report));
                self.commit(&mut mail, self.reports[report]);
            }
        }
        mail
    }

    fn fault(&self, mail: &Mail) -> Option<&'static str> {
        mail.broken
    }

    fn is_end(&self, mail: &Mail) -> bool {
        let mut reports = self.reports.iter();
        let has_all = reports.all(|report| mail.kept.contains(report));
        let once = mail.kept.len() == self.reports.len();
        let nothing_owed = mail.owed.iter().all(|owed| !owed);
        has_all && once && nothing_owed
    }
}

impl Delivery {
    fn commit(&self, mail: &mut Mail, told: Told) {
        if mail.kept.contains(&told) {
            return;
        }
        mail.kept.push(told);
        mail.kept.sort_unstable();
        if !told.1.is_end() {
            return;
        }
        let by = |applied: &&mut Told| applied.0 == told.0;
        match mail.applied.iter_mut().find(by) {
            Some(_) if self.first_wins => {}
            Some(applied) => {
                *applied = told;
                mail.broken = Some("an end that was shown is another one later");
            }
            None => {
                mail.applied.push(told);
                mail.applied.sort_unstable();
            }
        }
    }
}

impl Mail {
    fn post(&mut self, letter: Letter) {
        self.network.push(letter);
        self.network.sort_unstable();
    }

    fn remove(&mut self, letter: Letter) {
        let mut network = self.network.iter();
        if let Some(at) = network.position(|other| *other == letter) {
            self.network.remove(at);
        }
    }
}
