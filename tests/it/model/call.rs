//! The steps of a call: what the caller, the sidecars of the callee and the network may do next.
//!
//! States move by the product's own table (`Trail`), and what may follow an attempt is the
//! product's own rule. The record of replies is written down anew, since the real one is a table
//! on disk: first the row, then the application; one row per key; a row in flight of a process
//! that died leaves a doubt.

use super::explore::Model;
use super::world::{
    Attempt, Choice, Faults, Message, Phase, Row, Run, SITES, STANDBY, Said, Site, World,
};
use hermes_sidecar::task::{Course, Ended, Execution, Next, State, Timestamp, Trail};

/// What is called, and by which rules.
#[derive(Clone, Copy)]
pub struct Call {
    pub is_idempotent: bool,
    pub max_retries: u32,
    pub has_standby: bool,
    pub faults: Faults,
    pub rules: Rules,
}

/// The rules that the promises rest on; a test exchanges one and must see a promise break.
#[derive(Clone, Copy)]
pub struct Rules {
    /// What may follow an attempt.
    pub after: fn(&mut Course, Ended) -> Next,
    /// Each retry is counted.
    pub counts_retries: bool,
    /// A request that goes out again and finds nobody leaves the question open.
    pub doubts_repeats: bool,
    /// The record is looked at before anything that may refuse a call as not carried out.
    pub is_record_first: bool,
    /// A row that was in flight when its process died, or whose end was not kept, is a doubt, not
    /// gone.
    pub keeps_doubts: bool,
    /// Nothing is begun any more once the call's deadline has passed.
    pub minds_deadline: bool,
    /// Of several ends of an attempt only the first is taken.
    pub settles_once: bool,
    /// What is said not to be carried out is let go of.
    pub lets_go: bool,
    /// Nothing is begun where the record cannot be asked.
    pub doubts_unread: bool,
}

#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// The caller sends an attempt there.
    Dispatch {
        site: usize,
    },
    /// The caller ends the call: no budget for a retry, or nobody to send it to.
    GiveUp,
    /// The caller turns to the standby instead of another attempt on the agent.
    FallBack,
    /// The deadline of the call passes.
    Expire,
    /// The caller's timer of the attempt under way fires.
    CallerTimer,
    /// A message arrives; a request is taken.
    Arrive(Message),
    /// A request arrives and is refused: draining, not ready, or no permit.
    Refuse(Message),
    /// A request arrives and breaks the contract.
    FindInvalid(Message),
    Lose(Message),
    /// A request arrives, and the record cannot be asked in time.
    ArriveUnread(Message),
    /// Somebody between sends the request again, since no answer came, and drops the former one.
    Repeat,
    /// The application gets the request.
    Execute {
        site: usize,
        run: Run,
    },
    /// The application could not be reached, or the time was up before.
    Withhold {
        site: usize,
        run: Run,
    },
    /// The application answers.
    Answer {
        site: usize,
        run: Run,
        end: State,
        is_refusal: bool,
    },
    /// The application answers, and the record does not keep it.
    AnswerUnkept {
        site: usize,
        run: Run,
        end: State,
    },
    /// The application dies.
    Reset {
        site: usize,
        run: Run,
    },
    /// The callee's timer fires.
    CalleeTimer {
        site: usize,
        run: Run,
    },
    Crash {
        site: usize,
    },
    Restart {
        site: usize,
    },
}

impl Model for Call {
    type State = World;
    type Step = Step;

    fn start(&self) -> World {
        World::new(
            Course::new(self.is_idempotent, self.max_retries),
            self.faults,
            1,
        )
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        self.caller_steps(world, &mut steps);
        self.network_steps(world, &mut steps);
        for (number, site) in world.sites.iter().enumerate() {
            site_steps(world, number, site, &mut steps);
        }
        steps
    }

    fn take(&self, world: &World, step: Step) -> World {
        let mut world = world.clone();
        match step {
            Step::Dispatch { site } => self.dispatch(&mut world, site),
            Step::GiveUp => world.caller.phase = Phase::Over,
            Step::FallBack => world.caller.phase = Phase::Choosing(Choice::Standby),
            Step::Expire => world.caller.is_expired = true,
            Step::CallerTimer => {
                let silent = Ended {
                    state: State::Timeout,
                    is_refusal: false,
                    execution: Execution::Unknown,
                };
                self.ended(&mut world, silent);
            }
            Step::Arrive(message) => self.arrive(&mut world, message),
            Step::Refuse(message) => self.refuse(&mut world, message, State::FailedExecution),
            Step::FindInvalid(message) => self.refuse(&mut world, message, State::FailedValidation),
            Step::Lose(message) => {
                world.faults.losses -= 1;
                remove(&mut world, message);
            }
            Step::ArriveUnread(message) => self.receive_unread(&mut world, message),
            Step::AnswerUnkept { site, run, end } => {
                world.faults.unrecorded -= 1;
                finish(&mut world, site, run);
                world.sites[site].row = self.rules.keeps_doubts.then_some(Row::InDoubt);
                self.reply(&mut world, run, end, false, true);
            }
            Step::Repeat => {
                world.faults.repeats -= 1;
                ask_again(&mut world);
            }
            Step::Execute { site, run } => execute(self, &mut world, site, run),
            Step::Withhold { site, run } => {
                if self.rules.lets_go {
                    finish(&mut world, site, run);
                    if run.has_ticket {
                        world.sites[site].row = None;
                    }
                }
                self.reply(&mut world, run, State::FailedExecution, false, false);
            }
            Step::Answer {
                site,
                run,
                end,
                is_refusal,
            } => {
                finish(&mut world, site, run);
                if run.has_ticket {
                    world.sites[site].row = Some(Row::Answered(end, is_refusal));
                }
                self.reply(&mut world, run, end, is_refusal, true);
            }
            Step::Reset { site, run } => {
                world.faults.crashes -= 1;
                self.doubt(&mut world, site, run, State::FailedExecution);
            }
            Step::CalleeTimer { site, run } => self.doubt(&mut world, site, run, State::Timeout),
            Step::Crash { site } => self.crash(&mut world, site),
            Step::Restart { site } => world.sites[site].is_down = false,
        }
        world
    }

    fn fault(&self, world: &World) -> Option<&'static str> {
        let once = !self.is_idempotent;
        let bound = 1 + self.max_retries as usize;
        if once && world.executions_at(0..STANDBY) > 1 {
            return Some("work that must not be done twice was done twice");
        }
        if once && world.executions_at(STANDBY..SITES) > 1 {
            return Some("a standby did work twice that must not be done twice");
        }
        if world.attempts_at(0..STANDBY) > bound || world.attempts_at(STANDBY..SITES) > 1 {
            return Some("there are more attempts than allowed");
        }
        world.broken
    }

    fn is_end(&self, world: &World) -> bool {
        let mut attempts = world.caller.attempts.iter();
        let all_ended = attempts.all(|attempt| attempt.state.is_end() && attempt.ended.is_some());
        world.caller.phase == Phase::Over && all_ended
    }
}

impl Call {
    fn caller_steps(&self, world: &World, steps: &mut Vec<Step>) {
        let caller = &world.caller;
        match caller.phase {
            Phase::Over => return,
            Phase::Waiting => {
                steps.push(Step::CallerTimer);
                let is_asked = |message: &Message| message.said == Said::Request;
                // What is still on its way is not repeated.
                let mut network = world.network.iter();
                if world.faults.repeats > 0 && !network.any(is_asked) {
                    steps.push(Step::Repeat);
                }
            }
            Phase::Choosing(_) if caller.is_expired && self.rules.minds_deadline => {
                steps.push(Step::GiveUp);
                return;
            }
            Phase::Choosing(choice) => {
                steps.push(Step::GiveUp);
                let is_retry = choice != Choice::Standby && !caller.attempts.is_empty();
                if self.has_standby && is_retry {
                    steps.push(Step::FallBack);
                }
                let tried = |site: &usize| caller.attempts.iter().any(|made| made.site == *site);
                match choice {
                    Choice::Same(site) => steps.push(Step::Dispatch { site }),
                    Choice::Standby => steps.push(Step::Dispatch { site: STANDBY }),
                    // The instances are alike: which is first does not matter.
                    Choice::Elsewhere if caller.attempts.is_empty() => {
                        steps.push(Step::Dispatch { site: 0 });
                    }
                    Choice::Elsewhere => {
                        let mut fresh: Vec<usize> =
                            (0..STANDBY).filter(|site| !tried(site)).collect();
                        if fresh.is_empty() {
                            fresh.extend(0..STANDBY);
                        }
                        steps.extend(fresh.into_iter().map(|site| Step::Dispatch { site }));
                    }
                }
            }
        }
        if !caller.is_expired {
            steps.push(Step::Expire);
        }
    }

    fn network_steps(&self, world: &World, steps: &mut Vec<Step>) {
        for message in &world.network {
            steps.push(Step::Arrive(*message));
            if world.faults.losses > 0 {
                steps.push(Step::Lose(*message));
            }
            let site = &world.sites[world.caller.attempts[message.attempt].site];
            if message.said == Said::Request && !site.is_down {
                if world.faults.unrecorded > 0 && !self.is_idempotent {
                    steps.push(Step::ArriveUnread(*message));
                }
                if site.row.is_none() || !self.rules.is_record_first {
                    steps.push(Step::Refuse(*message));
                }
                // The same bytes are judged once.
                if message.copy == 0 {
                    steps.push(Step::FindInvalid(*message));
                }
            }
        }
    }

    fn dispatch(&self, world: &mut World, site: usize) {
        if world.caller.is_expired {
            world.break_promise("an attempt is sent after the deadline of the call");
        }
        let is_retry = site != STANDBY && !world.caller.attempts.is_empty();
        if is_retry && self.rules.counts_retries && !world.caller.course.retry(self.is_idempotent) {
            world.break_promise("a retry is made that the rule does not allow");
        }
        let first = match site {
            STANDBY => State::FallbackInvoked,
            _ => State::Pending,
        };
        let attempt = world.caller.attempts.len();
        world.caller.attempts.push(Attempt {
            site,
            state: first,
            copy: 0,
            ended: None,
            is_told: false,
        });
        advance(world, State::Dispatched);
        world.caller.phase = Phase::Waiting;
        world.send(Message {
            attempt,
            copy: 0,
            said: Said::Request,
        });
    }

    /// Ends the attempt under way and decides what follows.
    fn ended(&self, world: &mut World, ended: Ended) {
        if ended.execution == Execution::Done {
            advance(world, State::Executing);
        }
        advance(world, ended.state);
        if world.current().ended.replace(ended).is_some() {
            world.break_promise("a caller reports the end of an attempt twice");
        }
        let site = world.current().site;
        world.caller.phase = if site == STANDBY {
            Phase::Over
        } else {
            self.following(world, site, ended)
        };
        // Nobody listens for another answer.
        if self.rules.settles_once {
            let is_request = |message: &Message| message.said == Said::Request;
            world.network.retain(is_request);
        }
    }

    fn following(&self, world: &mut World, site: usize, ended: Ended) -> Phase {
        match (self.rules.after)(&mut world.caller.course, ended) {
            Next::Nothing => Phase::Over,
            Next::Elsewhere => Phase::Choosing(Choice::Elsewhere),
            Next::SameInstance => Phase::Choosing(Choice::Same(site)),
            Next::Fallback if self.has_standby => Phase::Choosing(Choice::Standby),
            Next::Fallback => Phase::Over,
        }
    }

    fn arrive(&self, world: &mut World, message: Message) {
        remove(world, message);
        let Message {
            attempt,
            copy,
            said,
        } = message;
        if said == Said::Request {
            return self.receive(world, attempt, copy);
        }
        let ended = |state, is_refusal, execution| Ended {
            state,
            is_refusal,
            execution,
        };
        let failed = State::FailedExecution;
        match said {
            Said::Request => {}
            Said::Ended {
                end,
                is_refusal,
                is_executed,
            } => {
                let execution = match is_executed {
                    true => Execution::Done,
                    false => Execution::Not,
                };
                self.ended(world, ended(end, is_refusal, execution));
            }
            Said::InFlight if world.caller.questions > 0 => {
                world.caller.questions -= 1;
                ask_again(world);
            }
            // It would be asked again and again until a timer fires.
            Said::InFlight => {}
            Said::InDoubt => self.ended(world, ended(failed, false, Execution::Done)),
            // Whoever sent it again may have been cut off by the death of the one that had it.
            Said::NoConnection if copy > 0 && self.rules.doubts_repeats => {
                self.ended(world, ended(failed, false, Execution::Unknown));
            }
            Said::NoConnection => self.ended(world, ended(failed, false, Execution::Not)),
            Said::Broken => self.ended(world, ended(failed, false, Execution::Unknown)),
        }
    }

    /// Receives a request at its site.
    fn receive(&self, world: &mut World, attempt: usize, copy: u8) {
        let number = world.caller.attempts[attempt].site;
        let site = &mut world.sites[number];
        if site.is_down {
            return self.answer(world, attempt, copy, Said::NoConnection);
        }
        let begin = |has_ticket| Run {
            attempt,
            copy,
            is_sent: false,
            has_ticket,
        };
        if self.is_idempotent {
            site.runs.push(begin(false));
            return site.runs.sort_unstable();
        }
        match site.row {
            None => {
                site.row = Some(Row::InFlight);
                site.runs.push(begin(true));
                site.runs.sort_unstable();
            }
            // No attempt of its own: nothing is reported of it.
            Some(Row::InFlight) => self.answer(world, attempt, copy, Said::InFlight),
            Some(Row::InDoubt) => self.answer(world, attempt, copy, Said::InDoubt),
            Some(Row::Answered(end, is_refusal)) => {
                let run = Run {
                    is_sent: true,
                    ..begin(false)
                };
                self.reply(world, run, end, is_refusal, true);
            }
        }
    }

    /// Receives a request whose row can be neither written in time nor read: only what is under way
    /// in this process is known.
    fn receive_unread(&self, world: &mut World, message: Message) {
        world.faults.unrecorded -= 1;
        remove(world, message);
        let Message { attempt, copy, .. } = message;
        let site = &mut world.sites[world.caller.attempts[attempt].site];
        if site.row == Some(Row::InFlight) {
            return self.answer(world, attempt, copy, Said::InFlight);
        }
        if self.rules.doubts_unread {
            return self.answer(world, attempt, copy, Said::InDoubt);
        }
        let run = Run {
            attempt,
            copy,
            is_sent: false,
            // The row comes late, unless there is one.
            has_ticket: site.row.is_none(),
        };
        site.row.get_or_insert(Row::InFlight);
        site.runs.push(run);
        site.runs.sort_unstable();
    }

    /// A sidecar dies with all its connections; what is on disk stays.
    fn crash(&self, world: &mut World, number: usize) {
        world.faults.crashes -= 1;
        let site = &mut world.sites[number];
        site.is_down = true;
        let runs = std::mem::take(&mut site.runs);
        if site.row == Some(Row::InFlight) {
            site.row = self.rules.keeps_doubts.then_some(Row::InDoubt);
        }
        let attempts = &world.caller.attempts;
        let is_here = |message: &Message| {
            message.said == Said::Request && attempts[message.attempt].site == number
        };
        let mut cut: Vec<(usize, u8)> = runs.iter().map(|run| (run.attempt, run.copy)).collect();
        cut.extend(
            world
                .network
                .iter()
                .filter(|message| is_here(message))
                .map(|message| (message.attempt, message.copy)),
        );
        world.network.retain(|message| !is_here(message));
        for (attempt, copy) in cut {
            self.answer(world, attempt, copy, Said::Broken);
        }
    }

    /// Turns a request away before the application hears of it.
    fn refuse(&self, world: &mut World, message: Message, end: State) {
        remove(world, message);
        let run = Run {
            attempt: message.attempt,
            copy: message.copy,
            is_sent: false,
            has_ticket: false,
        };
        self.reply(world, run, end, false, false);
    }

    /// Ends a run of which nobody can say what the application did.
    fn doubt(&self, world: &mut World, site: usize, run: Run, end: State) {
        finish(world, site, run);
        if run.has_ticket {
            world.sites[site].row = Some(Row::InDoubt);
        }
        self.reply(world, run, end, false, true);
    }

    /// Ends a run: the end is reported, and told to the caller.
    fn reply(&self, world: &mut World, run: Run, end: State, is_refusal: bool, is_executed: bool) {
        self.report(world, run.attempt);
        self.answer(
            world,
            run.attempt,
            run.copy,
            Said::Ended {
                end,
                is_refusal,
                is_executed,
            },
        );
    }

    /// Reports the end of an attempt as its callee, which happens once unless it came twice.
    fn report(&self, world: &mut World, attempt: usize) {
        let is_told = &mut world.caller.attempts[attempt].is_told;
        if std::mem::replace(is_told, true) && self.faults.repeats == 0 {
            world.break_promise("a callee reports the end of an attempt twice");
        }
    }

    /// Sends an answer, unless nobody listens for it any more.
    fn answer(&self, world: &mut World, attempt: usize, copy: u8, said: Said) {
        if !self.rules.settles_once || is_awaited(world, attempt, copy) {
            world.send(Message {
                attempt,
                copy,
                said,
            });
        }
    }
}

fn site_steps(world: &World, number: usize, site: &Site, steps: &mut Vec<Step>) {
    let (site_number, crashes) = (number, world.faults.crashes);
    for run in &site.runs {
        let (site, run) = (site_number, *run);
        if !run.is_sent {
            steps.push(Step::Execute { site, run });
            steps.push(Step::Withhold { site, run });
            continue;
        }
        let ends = [
            (State::Completed, false),
            (State::FailedExecution, false),
            (State::FailedExecution, true),
        ];
        for (end, is_refusal) in ends {
            steps.push(Step::Answer {
                site,
                run,
                end,
                is_refusal,
            });
        }
        if run.has_ticket && world.faults.unrecorded > 0 {
            for end in [State::Completed, State::FailedExecution] {
                steps.push(Step::AnswerUnkept { site, run, end });
            }
        }
        steps.push(Step::CalleeTimer { site, run });
        if crashes > 0 {
            steps.push(Step::Reset { site, run });
        }
    }
    let site = number;
    match world.sites[site].is_down {
        true => steps.push(Step::Restart { site }),
        false if crashes > 0 => steps.push(Step::Crash { site }),
        false => {}
    }
}

/// Says whether the caller still listens for an answer to this copy.
fn is_awaited(world: &World, attempt: usize, copy: u8) -> bool {
    let made = &world.caller.attempts;
    let is_newest = attempt + 1 == made.len() && made[attempt].copy == copy;
    is_newest && world.caller.phase == Phase::Waiting
}

/// Moves the attempt under way by the product's table.
fn advance(world: &mut World, next: State) {
    let at = Timestamp::from_millis(0);
    let mut trail = Trail::begin(world.current().state, at);
    match trail.advance(next, at) {
        Ok(()) => world.current().state = next,
        Err(_refused) => world.break_promise("an attempt leaves the table of states"),
    }
}

fn remove(world: &mut World, message: Message) {
    let mut network = world.network.iter();
    if let Some(at) = network.position(|other| *other == message) {
        world.network.remove(at);
    }
}

/// Sends the request of the attempt under way once more; nobody listens for the former one.
fn ask_again(world: &mut World) {
    let attempt = world.caller.attempts.len() - 1;
    let current = world.current();
    current.copy += 1;
    let copy = current.copy;
    let said = Said::Request;
    world
        .network
        .retain(|message| message.attempt != attempt || message.said == Said::Request);
    world.send(Message {
        attempt,
        copy,
        said,
    });
}

fn execute(call: &Call, world: &mut World, site: usize, run: Run) {
    let refused = |attempt: &Attempt| {
        let ended = attempt.ended;
        ended.is_some_and(|ended| ended.execution == Execution::Not)
    };
    // Repeated requests of idempotent work are no attempts of one caller any more.
    let counts = !call.is_idempotent || call.faults.repeats == 0;
    if counts && refused(&world.caller.attempts[run.attempt]) {
        world.break_promise("a refused attempt is executed");
    }
    let site = &mut world.sites[site];
    site.executed += 1;
    if let Some(running) = site.runs.iter_mut().find(|running| **running == run) {
        running.is_sent = true;
    }
    site.runs.sort_unstable();
}

fn finish(world: &mut World, site: usize, run: Run) {
    let runs = &mut world.sites[site].runs;
    if let Some(at) = runs.iter().position(|running| *running == run) {
        runs.remove(at);
    }
}
