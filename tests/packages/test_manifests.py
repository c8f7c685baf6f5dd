"""The manifests of Kubernetes and other YAML files: linter and schemas."""
import subprocess
import sys

import jsonschema
import kubernetes_validate
import pytest
import yaml

from debian_root import ROOT

VERSION = "1.31"
LINT = """
extends: default
rules:
  braces: {max-spaces-inside: 0}
  comments: {min-spaces-from-content: 2}
  document-start: disable
  indentation: {indent-sequences: whatever}
  line-length: {max: 125}
"""
COUNT = {"type": "integer", "minimum": 1}
POD = {"type": "object", "required": ["spec"], "additionalProperties": False,
       "properties": {"metadata": {"type": "object"}, "spec": {"type": "object"}}}
# The fields of LeaderWorkerSet v1 that the manifest uses; its schema is not part of Kubernetes.
LEADER_WORKER_SET = {
    "type": "object", "additionalProperties": False, "required": ["leaderWorkerTemplate"],
    "properties": {
        "replicas": COUNT,
        "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
        "leaderWorkerTemplate": {
            "type": "object", "additionalProperties": False, "required": ["workerTemplate", "size"],
            "properties": {"size": COUNT, "restartPolicy": {"enum": ["RecreateGroupOnPodRestart", "None"]},
                           "leaderTemplate": POD, "workerTemplate": POD}}}}
MANIFESTS = [ROOT / "deploy/kubernetes.yaml", ROOT / "deploy/kubernetes-hosts.yaml"]


def documents(file):
    return list(yaml.safe_load_all(file.read_text()))


@pytest.mark.parametrize("file", [*MANIFESTS, ROOT / "deploy/systemd/yardling.yaml"], ids=lambda path: path.name)
def test_the_linter_has_no_findings(file):
    done = subprocess.run([sys.executable, "-m", "yamllint", "--strict", "-d", LINT, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def check(document):
    kubernetes_validate.validate(document, VERSION, strict=True)


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda path: path.name)
def test_objects_match_the_schemas(file):
    for document in documents(file):
        if document["kind"] != "LeaderWorkerSet":
            check(document)
            continue
        assert document["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
        jsonschema.validate(document["spec"], LEADER_WORKER_SET)
        group = document["spec"]["leaderWorkerTemplate"]
        for name in ("leaderTemplate", "workerTemplate"):
            check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", **group[name]["metadata"]},
                   "spec": group[name]["spec"]})


def test_an_unknown_field_is_found():
    document = documents(MANIFESTS[0])[1]
    document["spec"]["template"]["spec"]["containers"][0]["probe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        check(document)


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda path: path.name)
def test_services_select_the_pods_that_serve_http(file):
    service, workload = documents(file)
    template = (workload["spec"]["template"] if workload["kind"] == "Deployment"
                else workload["spec"]["leaderWorkerTemplate"]["leaderTemplate"])
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    names = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= names
    if workload["kind"] == "LeaderWorkerSet":  # the controller creates a service with the name of the set
        assert service["metadata"]["name"] != workload["metadata"]["name"]
        worker = workload["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"]
        assert not service["spec"]["selector"].items() <= worker.items()
