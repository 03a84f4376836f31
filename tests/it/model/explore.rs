//! Walks through every state of a model, breadth first.
//!
//! A library for this (`stateright`) would bring a web server and second versions of `rand` and
//! `hashbrown` along, and says itself that it can miss a path that never ends.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::rc::Rc;

/// Beyond this a model is too large to be part of every run.
const MOST_STATES: usize = 2_000_000;

/// Something that moves in steps, each of which may be taken or not.
pub trait Model {
    type State: Clone + Eq + Hash;
    type Step: Copy + Debug;

    fn start(&self) -> Self::State;

    /// Lists the steps that may come next.
    fn steps(&self, state: &Self::State) -> Vec<Self::Step>;

    /// Takes a step.
    fn take(&self, state: &Self::State, step: Self::Step) -> Self::State;

    /// Names the promise that is broken here.
    fn fault(&self, state: &Self::State) -> Option<&'static str>;

    /// Says whether a state in which nothing more can happen is a good end.
    fn is_end(&self, state: &Self::State) -> bool;
}

/// A model that was walked through and holds.
#[derive(Debug, Clone, Copy)]
pub struct Explored {
    pub states: usize,
    pub ends: usize,
    /// Steps of the longest path.
    pub longest: usize,
}

/// A promise that does not hold, with the fewest steps that show it.
#[derive(Debug)]
pub struct Counterexample {
    pub fault: &'static str,
    pub steps: Vec<String>,
}

/// Walks through every state that can be reached; each path must come to a good end.
pub fn explore<M: Model>(model: &M) -> Result<Explored, Counterexample> {
    let mut seen = Seen::<M>::default();
    seen.add(model.start(), None);
    let mut ends = 0;
    let mut next = 0;
    while let Some(state) = seen.states.get(next).cloned() {
        if let Some(fault) = model.fault(&state) {
            return Err(seen.counterexample(next, fault));
        }
        let steps = model.steps(&state);
        if steps.is_empty() {
            ends += 1;
            if !model.is_end(&state) {
                return Err(seen.counterexample(next, "nothing more can happen before the end"));
            }
        }
        for step in steps {
            seen.add(model.take(&state, step), Some((next, step)));
        }
        assert!(seen.states.len() <= MOST_STATES, "the model is too large");
        next += 1;
    }
    match seen.longest() {
        Ok(longest) => Ok(Explored {
            states: seen.states.len(),
            ends,
            longest,
        }),
        Err(on_a_circle) => Err(seen.counterexample(on_a_circle, "a path never ends")),
    }
}

struct Seen<M: Model> {
    states: Vec<Rc<M::State>>,
    numbers: HashMap<Rc<M::State>, usize>,
    /// The first way to each state.
    before: Vec<Option<(usize, M::Step)>>,
    after: Vec<Vec<usize>>,
}

impl<M: Model> Default for Seen<M> {
    fn default() -> Self {
        Self {
            states: Vec::new(),
            numbers: HashMap::default(),
            before: Vec::new(),
            after: Vec::new(),
        }
    }
}

impl<M: Model> Seen<M> {
    fn add(&mut self, state: M::State, way: Option<(usize, M::Step)>) {
        let number = match self.numbers.get(&state) {
            Some(number) => *number,
            None => {
                let (state, number) = (Rc::new(state), self.states.len());
                self.numbers.insert(Rc::clone(&state), number);
                self.states.push(state);
                self.before.push(way);
                self.after.push(Vec::new());
                number
            }
        };
        if let Some((from, _)) = way {
            self.after[from].push(number);
        }
    }

    /// Returns the length of the longest path, or a state on a circle.
    fn longest(&self) -> Result<usize, usize> {
        let mut arrivals = vec![0_usize; self.states.len()];
        for after in &self.after {
            after.iter().for_each(|state| arrivals[*state] += 1);
        }
        let mut length = vec![0; self.states.len()];
        let mut free = vec![0];
        let mut left = self.states.len();
        while let Some(state) = free.pop() {
            left -= 1;
            for next in &self.after[state] {
                length[*next] = length[*next].max(length[state] + 1);
                arrivals[*next] -= 1;
                if arrivals[*next] == 0 {
                    free.push(*next);
                }
            }
        }
        match left {
            0 => Ok(length.into_iter().max().unwrap_or(0)),
            _ => Err(arrivals.iter().position(|count| *count > 0).unwrap_or(0)),
        }
    }

    fn counterexample(&self, mut state: usize, fault: &'static str) -> Counterexample {
        let mut steps = Vec::new();
        while let Some((from, step)) = self.before[state] {
            steps.push(format!("{step:?}"));
            state = from;
        }
        steps.reverse();
        Counterexample { fault, steps }
    }
}
