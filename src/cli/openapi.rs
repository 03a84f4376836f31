//! `contract openapi`: from OpenAPI documents to contracts, and back.
//!
//! A file whose root has the member `openapi` is an OpenAPI document, any other a contract. What
//! was changed or left out goes to standard error, so that the data can be used as it comes.

use std::collections::HashSet;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use http::Method;
use serde_json::Value;

use crate::contract::openapi::{self, Description};
use crate::contract::{Compiled, Contract, ContractId, Problems};

use super::exit::{Exit, Failure};
use super::{OutputArgs, file, output};

/// Turn OpenAPI documents into contracts, and contracts into an OpenAPI document.
///
/// A file with the member "openapi" is taken for an OpenAPI document (JSON, version 3.0 or 3.1);
/// its contracts are printed one after the other, with -o json as one list. Other files are taken
/// for contracts, and one OpenAPI 3.1 document of all is printed.
#[derive(Debug, Args)]
pub(super) struct OpenapiArgs {
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// How the contract is called, in the OpenAPI document.
    #[arg(long, value_enum, default_value_t = Verb::Post, ignore_case = true)]
    method: Verb,
    /// Where it is called; default: /hermes/agents/ID.
    #[arg(long, value_name = "PATH", value_parser = plain_path)]
    path: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Verb {
    Post,
    Put,
    Patch,
}

fn plain_path(text: &str) -> Result<String, String> {
    let is_plain = text.starts_with('/')
        && text.bytes().all(|byte| byte.is_ascii_graphic())
        && !text.contains(['?', '#', '{', '}']);
    match is_plain {
        true => Ok(text.to_owned()),
        false => Err("write a path as in /api/v1/risk, without query or template".to_owned()),
    }
}

pub(super) fn openapi(args: OpenapiArgs) -> Result<Exit, Failure> {
    let files = file::read_all(&args.files)?;
    let documents = files
        .iter()
        .filter(|(_, body)| openapi::is_document(body))
        .count();
    if documents == files.len() {
        return Ok(import(&files, args.output.is_json()));
    }
    if documents > 0 {
        let told = "give either OpenAPI documents or contracts, not both at once";
        return Err(Failure::Usage(told.to_owned()));
    }
    if args.path.is_some() && files.len() > 1 {
        let told = "--path is for one contract; several cannot share it";
        return Err(Failure::Usage(told.to_owned()));
    }
    export(&args, &files)
}

/// Prints the contracts of documents; one fault anywhere and there are none.
fn import(files: &[(String, Vec<u8>)], as_list: bool) -> Exit {
    let (mut contracts, mut told) = (Vec::new(), HashSet::new());
    let mut is_fine = true;
    for (file, body) in files {
        match openapi::read(body) {
            Ok(imported) => {
                for one in imported {
                    tell(file, "warning", &one.warnings, &mut told);
                    let id = &one.contract.id;
                    let line = format!("{file}: {id} is at {} {}", one.method, one.path);
                    output::talk(&output::plain(&line));
                    contracts.push(one.contract);
                }
            }
            Err(problems) => {
                tell(file, "error", &problems, &mut told);
                is_fine = false;
            }
        }
    }
    if !is_fine {
        return Exit::Negative;
    }
    if let Some(twice) = twice(&contracts) {
        output::talk(&format!("error[id-twice]: two documents hold {twice}"));
        return Exit::Negative;
    }
    let contracts = contracts.iter().map(native);
    if as_list {
        output::json(&contracts.collect());
    } else {
        contracts.for_each(|contract| output::json(&contract));
    }
    Exit::Fine
}

fn export(args: &OpenapiArgs, files: &[(String, Vec<u8>)]) -> Result<Exit, Failure> {
    let mut contracts: Vec<Contract> = Vec::new();
    let mut is_fine = true;
    for (file, body) in files {
        let contract = Contract::from_slice(body).and_then(Compiled::new);
        match contract {
            Ok(compiled) => contracts.push(compiled.contract),
            Err(problems) => {
                tell(file, "error", &problems, &mut HashSet::new());
                is_fine = false;
            }
        }
    }
    if !is_fine {
        return Ok(Exit::Negative);
    }
    if let Some(twice) = twice(&contracts) {
        return Err(Failure::Usage(format!("{twice} is given twice")));
    }
    let method = match args.method {
        Verb::Post => Method::POST,
        Verb::Put => Method::PUT,
        Verb::Patch => Method::PATCH,
    };
    let ids: Vec<&str> = contracts
        .iter()
        .map(|contract| contract.id.as_str())
        .collect();
    let mut description = Description::new(&ids.join(", "));
    for contract in &contracts {
        let path = args.path.clone();
        let path = path.unwrap_or_else(|| format!("/hermes/agents/{}", contract.id));
        description.contract(contract, &method, &path);
    }
    output::json(&description.to_json());
    Ok(Exit::Fine)
}

fn native(contract: &Contract) -> Value {
    serde_json::from_slice(contract.body()).expect("a contract was read from its body")
}

fn twice(contracts: &[Contract]) -> Option<&ContractId> {
    let mut seen = HashSet::new();
    let mut ids = contracts.iter().map(|contract| &contract.id);
    ids.find(|id| !seen.insert(*id))
}

/// Says each thing once: what contracts share has the same faults in all of them.
fn tell(file: &str, severity: &str, problems: &Problems, told: &mut HashSet<String>) {
    for problem in problems.as_slice() {
        let line = format!("{file}: {severity}: {problem}");
        if told.insert(line.clone()) {
            output::talk(&output::plain(&line));
        }
    }
}
