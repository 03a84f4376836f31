//! Compiled contracts, one per digest, shared by everybody who uses them.

use std::{fmt, sync::Arc};

use semver::Version;
use tokio::sync::Semaphore;

use super::{Contract, ContractId, Problem, Problems, Validator};
use crate::apart;
use crate::identity::Digest;

/// How many compiled contracts are kept.
const CAPACITY: u64 = 1_024;
/// How many contracts of strangers are compiled at once; others wait their turn.
const COMPILING: usize = 2;

/// A contract whose schemas are ready to check bodies.
pub struct Compiled {
    pub contract: Contract,
    pub digest: Digest,
    pub input: Validator,
    pub output: Validator,
}

impl Compiled {
    /// Compiles both schemas; every fault of both is told.
    pub fn new(contract: Contract) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let mut compile = |name, schema| {
            let compiled = Validator::compile(schema);
            compiled.map_err(|faults| problems.extend(placed(name, faults)))
        };
        let input = compile("/input_schema", &contract.input_schema);
        let output = compile("/output_schema", &contract.output_schema);
        match (input, output) {
            (Ok(input), Ok(output)) => Ok(Self {
                digest: contract.digest(),
                contract,
                input,
                output,
            }),
            _ => Err(problems),
        }
    }
}

/// Turns places in a schema into places in the contract.
fn placed(name: &str, problems: Problems) -> impl Iterator<Item = Problem> {
    problems.into_iter().map(move |mut problem| {
        problem.pointer.insert_str(0, name);
        problem
    })
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compiled({:?})", self.contract)
    }
}

/// The compiled contracts in use.
#[derive(Clone)]
pub struct Cache {
    compiled: moka::sync::Cache<(ContractId, Version, Digest), Arc<Compiled>>,
    places: Arc<Semaphore>,
}

impl Cache {
    pub fn new() -> Self {
        Self {
            compiled: moka::sync::Cache::new(CAPACITY),
            places: Arc::new(Semaphore::new(COMPILING)),
        }
    }

    /// Gives the compiled form, made on first use; callers of one contract wait for one build.
    pub fn compiled(&self, contract: &Contract) -> Result<Arc<Compiled>, Arc<Problems>> {
        let key = (
            contract.id.clone(),
            contract.version.clone(),
            contract.digest(),
        );
        self.compiled
            .try_get_with(key, || Compiled::new(contract.clone()).map(Arc::new))
    }

    /// Does the same for a contract that came from elsewhere: apart from the threads that move
    /// traffic, since its author decides how long it takes.
    ///
    /// A caller that no longer waits leaves its build to end by itself.
    pub async fn compiled_apart(&self, contract: Contract) -> Result<Arc<Compiled>, Arc<Problems>> {
        let cache = self.clone();
        self.apart(move || cache.compiled(&contract)).await
    }

    /// The same without keeping it: whether a contract is sound, before anybody believes it.
    pub async fn sound_apart(&self, contract: Contract) -> Result<(), Arc<Problems>> {
        let compile = move || Compiled::new(contract).map(drop).map_err(Arc::new);
        self.apart(compile).await
    }

    async fn apart<T: Send + 'static>(
        &self,
        build: impl FnOnce() -> Result<T, Arc<Problems>> + Send + 'static,
    ) -> Result<T, Arc<Problems>> {
        let place = self.places.clone().acquire_owned().await;
        let built = apart::caught(move || {
            let _place = place;
            build()
        });
        built.await.unwrap_or_else(|panicked| {
            let message = format!("the contract could not be compiled: {panicked}");
            let remedy = "simplify its schemas";
            Err(Arc::new(Problem::new("schema", "", message, remedy).into()))
        })
    }

    /// Lists what is compiled of one contract, in whatever version.
    pub fn of(&self, id: &ContractId) -> Vec<Arc<Compiled>> {
        let all = self.compiled.iter();
        let of = all.filter(|(key, _)| key.0 == *id);
        of.map(|(_, compiled)| compiled).collect()
    }

    /// Lets go of a contract that is not to be used any more.
    pub fn forget(&self, contract: &Compiled) {
        let (id, version) = (&contract.contract.id, &contract.contract.version);
        let key = (id.clone(), version.clone(), contract.digest);
        self.compiled.invalidate(&key);
    }

    /// Looks a compiled contract up without building it.
    pub fn get(&self, id: &ContractId, version: &Version, digest: Digest) -> Option<Arc<Compiled>> {
        self.compiled.get(&(id.clone(), version.clone(), digest))
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({} contracts)", self.compiled.entry_count())
    }
}
