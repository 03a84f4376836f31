"""A client written by hand: finds an agent in Consul, checks what it sends and what it gets.

    client.py AGENT INPUT [--task-id ID] [--trace-id ID] [--sla-level P0]

CONSUL_HTTP_ADDR  the Consul agent that knows the instances (http://127.0.0.1:8500)
INVOKE_URL        where calls are posted, if not at the instance that Consul names: a gateway, a sidecar
"""

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from collections import OrderedDict

from jsonschema import Draft202012Validator


class Refused(Exception):
    """The call was not made, or its reply is not to be used."""


class Contracts:
    """The contracts used last, by id and version, each with its compiled checks."""

    def __init__(self, pull, size=128):
        self.pull = pull
        self.size = size
        self.kept = OrderedDict()

    def get(self, agent, version):
        key = (agent, version)
        if key not in self.kept:
            self.kept[key] = self.compiled(self.pull(agent))
            if len(self.kept) > self.size:
                self.kept.popitem(last=False)
        self.kept.move_to_end(key)
        return self.kept[key]

    @staticmethod
    def compiled(contract):
        formats = Draft202012Validator.FORMAT_CHECKER
        schemas = contract["input_schema"], contract["output_schema"]
        return [Draft202012Validator(schema, format_checker=formats) for schema in schemas]


class Client:
    def __init__(self, consul, invoke_url=None):
        self.consul = consul.rstrip("/")
        self.invoke_url = invoke_url
        self.contracts = Contracts(self.handshake)

    def invoke(self, agent, value, context):
        """Calls an agent and returns its result."""
        takes, gives = self.contracts.get(agent, self.version(agent))
        check(takes, value, "the input")
        url = self.invoke_url or f"{self.instance(agent)}/hermes/invoke"
        result = self.post(url, {"agent": agent, "input": value, "context": context})
        check(gives, result, "the reply")
        return result

    def instance(self, agent):
        """Returns the base URL of the first instance that passes its checks."""
        listed = self.get(f"{self.consul}/v1/health/service/{agent}?passing")
        if not listed:
            raise Refused(f"Consul lists no passing instance of {agent}")
        service = listed[0]["Service"]
        address = service["Address"] or listed[0]["Node"]["Address"]
        return f"http://{address}:{service['Port']}"

    def version(self, agent):
        """Returns the current version of a contract, so that an old copy of it is not used."""
        return self.fetch(f"{self.consul}/v1/kv/hermes/contracts/{agent}/version?raw").decode()

    def handshake(self, agent):
        contract = self.get(f"{self.instance(agent)}/hermes/handshake?agent={agent}")
        if contract.get("id") != agent:
            raise Refused(f"the instance hands out the contract of {contract.get('id')}")
        return contract

    def post(self, url, call):
        context = call["context"]
        named = {
            "Hermes-Task-Id": context.get("task_id"),
            "Hermes-Trace-Id": context.get("trace_id"),
            "Hermes-Sla-Level": context.get("sla_level"),
        }
        headers = {name: value for name, value in named.items() if value}
        headers["Content-Type"] = "application/json"
        return json.loads(self.fetch(url, json.dumps(call).encode(), headers))

    def get(self, url):
        return json.loads(self.fetch(url))

    @staticmethod
    def fetch(url, data=None, headers=None):
        call = urllib.request.Request(url, data, headers or {})
        try:
            with urllib.request.urlopen(call, timeout=10) as reply:
                return reply.read()
        except urllib.error.HTTPError as refusal:
            told = refusal.read().decode(errors="replace")
            try:
                told = json.loads(told)["error"]
            except (ValueError, KeyError, TypeError):
                pass
            raise Refused(f"{refusal.code}: {told}") from None
        except OSError as problem:
            raise Refused(f"{url}: {problem}") from None


def check(validator, value, what):
    """Fails with the place and the rule that a value breaks; the value itself is not repeated."""
    broken = next(validator.iter_errors(value), None)
    if broken:
        raise Refused(f"{what} breaks the contract at {broken.json_path}: {broken.validator}")


def main():
    parser = argparse.ArgumentParser(description="Calls an agent by its contract.")
    parser.add_argument("agent")
    parser.add_argument("input", type=json.loads, help="JSON")
    parser.add_argument("--task-id")
    parser.add_argument("--trace-id")
    parser.add_argument("--sla-level")
    asked = vars(parser.parse_args())
    agent, value = asked.pop("agent"), asked.pop("input")
    context = {name: given for name, given in asked.items() if given}
    consul = os.environ.get("CONSUL_HTTP_ADDR", "http://127.0.0.1:8500")
    client = Client(consul, os.environ.get("INVOKE_URL"))
    try:
        print(json.dumps(client.invoke(agent, value, context)))
    except Refused as refusal:
        sys.exit(f"refused: {refusal}")


if __name__ == "__main__":
    main()
