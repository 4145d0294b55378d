"""The chart, rendered by Helm's own engine, and the plain manifests, built by kubectl's kustomize: both
against Kubernetes' schemas, and against each other.

Nothing here starts a cluster. Resources that Kubernetes does not define are held to schemas/ here.
"""

import json
import pathlib
import re
import subprocess
import sys

import helm_python.chart
import jsonschema
import kubernetes_validate
import pytest
import yaml
from helm_python import Chart

from processes import ROOT

CHART = ROOT / "deploy/helm/moxie"
PLAIN = ROOT / "deploy/kubernetes"
SCHEMAS = pathlib.Path(__file__).parent / "schemas"
KUBERNETES = ["1.25", "1.30", "1.37"]  # the chart's kubeVersion, and later
EXAMPLES = {path.stem: yaml.safe_load(path.read_text()) for path in (CHART / "examples").glob("*.yaml")}
# A folder of plain manifests says the same as the chart with an example's values.
PAIRS = {"base": {}, **{name: EXAMPLES[name] for name in
                        ("gpu", "router", "autoscaling", "inference-pool")}}
EVERYTHING = {
    "replicas": 3, "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "autoscaling": {"enabled": True}, "router": {"enabled": True}, "gpu": {
        "enabled": True, "runtimeClassName": "nvidia"}, "imagePullSecrets": [{"name": "registry"}],
    "inferencePool": {"enabled": True, "picker": {"image": "epp:1"}}, "podAnnotations": {"a": "b"},
    "nodeSelector": {"kind": "gpu"}, "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}},
    "model": {"source": "pull", "repository": "a/b", "revision": "v1", "servedNames": ["b", "c"],
              "endpoint": "https://hub.example", "tokenSecret": {"name": "hub-token"}}}
CASES = {"default": {}, "everything": EVERYTHING, **EXAMPLES}


def render(values, name="moxie", namespace="default"):
    with Chart.load(CHART) as chart:
        files = chart.render(values=values, name=name, namespace=namespace)
    notes = next(text for path, text in files.items() if path.endswith("NOTES.txt"))
    documents = [document for path, text in files.items() if path.endswith(".yaml")
                 for document in yaml.safe_load_all(text) if document]
    return documents, notes


def kustomize(folder):
    kubectl = pathlib.Path(sys.executable).parent / "kubectl"
    done = subprocess.run([kubectl, "kustomize", PLAIN / folder], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def check(document, version):
    schema = SCHEMAS / f"{document['kind'].lower()}.json"
    if schema.exists():
        jsonschema.validate(document, json.loads(schema.read_text()))
    else:  # strict: an unknown field is an error
        kubernetes_validate.validate(document, version, strict=True)


def of_kind(documents, kind, name=None):
    (found,) = [document for document in documents
                if document["kind"] == kind and name in (None, document["metadata"]["name"])]
    return found


def pod(documents, name="moxie"):
    return of_kind(documents, "Deployment", name)["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("case", CASES)
def test_the_chart_follows_the_schemas(case, version):
    documents, _ = render(CASES[case])
    assert len(documents) >= 3
    for document in documents:
        check(document, version)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("folder", PAIRS)
def test_plain_manifests_follow_the_schemas(folder, version):
    for document in kustomize(folder):
        check(document, version)


def test_the_schemas_refuse_what_is_wrong():
    for change in ({"replica": 1}, {"replicas": "one"}):
        document = of_kind(render({})[0], "Deployment")
        document["spec"].update(change)
        with pytest.raises(jsonschema.ValidationError):
            check(document, KUBERNETES[-1])
    for kind, change in (("ScaledObject", {"maxReplica": 2}), ("PodMonitor", {"endpoints": []}),
                         ("InferencePool", {"extensionRef": {"name": "x"}})):
        document = of_kind(render(EVERYTHING)[0], kind)
        document["spec"].update(change)
        with pytest.raises(jsonschema.ValidationError):
            check(document, KUBERNETES[-1])


def comparable(documents):
    """By kind and name, without the labels that only Helm sets or Kubernetes defaults."""
    def cleaned(value):
        if isinstance(value, dict):
            return {key: cleaned(item) for key, item in value.items() if key not in (
                "helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version",
                "app.kubernetes.io/instance")}
        if isinstance(value, list):
            items = [cleaned(item) for item in value
                     if not str(item).startswith("app.kubernetes.io/instance=")]
            # Lists of named things have no order here.
            return sorted(items, key=lambda item: item["name"]) if all(
                isinstance(item, dict) and "name" in item for item in items) else items
        return value
    return {(document["kind"], document["metadata"]["name"]): cleaned(document)
            for document in documents}


@pytest.mark.parametrize("folder", PAIRS)
def test_plain_manifests_say_what_the_chart_says(folder):
    assert comparable(kustomize(folder)) == comparable(render(PAIRS[folder])[0])


def test_helm_finds_no_fault():
    found = helm_python.chart.lint(CHART, strict=True)
    assert found["errors"] == []
    assert [message for message in found["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("case", CASES)
def test_pods_are_confined(case):
    for document in render(CASES[case])[0]:
        if document["kind"] != "Deployment":
            continue
        spec = document["spec"]["template"]["spec"]
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("drain", [{}, {"delay": 0, "timeout": 0}, {"delay": 30, "timeout": 600}])
def test_the_grace_period_exceeds_the_drain(drain):
    spec = pod(render({"drain": drain})[0])
    args = dict(arg.split("=", 1) for arg in spec["containers"][0]["args"] if "=" in arg)
    assert spec["terminationGracePeriodSeconds"] > int(args["--drain-delay"]) + int(args["--drain-timeout"])


def test_probes():
    (container,) = pod(render({})[0])["containers"]
    paths = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert paths == {"startupProbe": "/readyz", "livenessProbe": "/livez", "readinessProbe": "/readyz"}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("release", ["moxie", "a", "my-moxie-2", "x" * 53])
def test_names(case, release):
    """A Service sets variables NAME_PORT and the like: none may begin as the switches do."""
    for document in render(CASES[case], release)[0]:
        name = document["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name), name
        if document["kind"] == "Service":
            assert not name.startswith("moxie")


def test_selectors_find_the_pods():
    documents, _ = render(EVERYTHING)
    labels = [document["spec"]["template"]["metadata"]["labels"] for document in documents
              if document["kind"] == "Deployment"]
    assert len(labels) == 3

    def found(selector):
        return [label for label in labels if selector.items() <= label.items()]
    for document in documents:
        spec = document.get("spec", {})
        selector = spec.get("selector", {})
        selector = selector.get("matchLabels", selector)
        if selector:
            assert len(found(selector)) == 1, document["metadata"]["name"]
    args = pod(documents, "moxie-router")["containers"][0]["args"]
    chosen = dict(arg.split("=") for arg in args if arg.startswith("app.kubernetes.io/"))
    assert len(chosen) == 2 and len(found(chosen)) == 1


def test_the_pickers_configuration():
    config = of_kind(render(EVERYTHING)[0], "ConfigMap")["data"]["picker.yaml"]
    document = yaml.safe_load(config)
    jsonschema.validate(document, json.loads((SCHEMAS / "endpointpickerconfig.json").read_text()))
    plugins = {plugin.get("name", plugin["type"]) for plugin in document["plugins"]}
    used = {plugin["pluginRef"] for profile in document["schedulingProfiles"]
            for plugin in profile["plugins"]}
    assert used <= plugins


@pytest.mark.parametrize("values, said", [
    ({"model": {"source": "claim"}}, "model.claim"),
    ({"model": {"source": "pull"}}, "model.repository"),
    ({"model": {"source": "hub"}}, "source"),
    ({"model": {"source": "pull", "repository": "a/b", "revision": "v1", "cacheClaim": "c"}},
     "model.cacheClaim"),
    ({"router": {"enabled": True}, "apiKeys": {"secret": "keys"}}, "keys"),
    ({"autoscaling": {"enabled": True}}, "podMonitor.enabled"),
    ({"inferencePool": {"enabled": True}}, "picker.image"),
    ({"replica": 2}, "replica"),
    ({"drain": {"slack": 0}}, "slack"),
    ({"router": {"policy": "best"}}, "policy"),
])
def test_values_that_make_no_sense_are_refused(values, said):
    with pytest.raises(Exception, match=re.escape(said)):
        render(values)


def test_models():
    args = {case: pod(render(CASES[case])[0])["containers"][0]["args"] for case in CASES}
    assert "--model=embedded" in args["default"] and "--device=cpu" in args["default"]
    assert "--model=openai/gpt-oss-120b" in args["gpu"] and "--device=cuda" in args["gpu"]
    assert "--model=/models/gpt-oss-20b" in args["claim"]
    assert "--api-key-file=/keys/keys" in args["claim"]
    (pull,) = pod(render(CASES["gpu"])[0])["initContainers"]
    assert pull["args"] == ["pull", "openai/gpt-oss-120b", "--revision", "main"]
    assert [variable["name"] for variable in pull["env"]] == ["HF_HOME", "HF_TOKEN"]


@pytest.mark.parametrize("case, url", [("default", "llm-moxie.default:8000"),
                                       ("router", "llm-moxie-router.default:8080")])
def test_notes_name_the_service(case, url):
    assert url in render(CASES[case])[1]
