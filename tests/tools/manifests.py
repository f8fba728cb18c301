"""Validates Kubernetes manifests against the API's own schemas, strictly: `manifests.py [--crds DIR] FILE...`.

The schemas come with the Python package kubernetes-validate, nothing is fetched. Those of the Prometheus operator's objects
are taken from its CRDs in DIR; without it they are named and left out. The first object is checked once more with a
misspelt field in it, so that a validator that takes everything is noticed. Exit code 1: something is wrong.
"""

import argparse
import copy
import glob

import jsonschema
import kubernetes_validate
import yaml

# The oldest supported version (preStop.sleep is enabled by default from 1.30), and the newest known one.
VERSIONS = ("1.30", "1.37")


# A CRD has a bare = in a list, which PyYAML parses as a special value that it cannot construct.
yaml.SafeLoader.add_constructor("tag:yaml.org,2002:value", yaml.SafeLoader.construct_yaml_str)


def closed(schema):
    """The schema of a CRD. The API server prunes by it, so unknown fields are refused as well."""
    if isinstance(schema, dict):
        schema = {key: closed(value) for key, value in schema.items() if not key.startswith("x-kubernetes")}
        if isinstance(schema.get("pattern"), str) and "(?i)" in schema["pattern"]:
            del schema["pattern"]  # Go's, which Python does not take
        if "properties" in schema and "additionalProperties" not in schema:
            schema["additionalProperties"] = False
    elif isinstance(schema, list):
        schema = [closed(value) for value in schema]
    return schema


def crds(directory):
    found = {}
    for path in glob.glob(f"{directory}/*.yaml"):
        with open(path, encoding="utf-8") as file:
            crd = yaml.safe_load(file)
        if not crd or crd.get("kind") != "CustomResourceDefinition":
            continue
        for version in crd["spec"]["versions"]:
            schema = closed(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            found[f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]] = schema
    return found


def validate(manifest, custom):
    """Returns the schema's name; None without a known schema. Raises if the document does not fit."""
    schema = custom.get((manifest["apiVersion"], manifest["kind"]))
    if schema is not None:
        jsonschema.validate(manifest, schema)
        return "CRD"
    try:
        for version in VERSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.utils.SchemaNotFoundError:
        return None
    return f"Kubernetes {' and '.join(VERSIONS)}"


def is_valid(manifest, custom):
    try:
        validate(manifest, custom)
    except jsonschema.ValidationError:
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crds", help="directory of CRDs")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    custom = crds(arguments.crds) if arguments.crds else {}
    wrong = tried = 0
    for path in arguments.files:
        with open(path, encoding="utf-8") as file:
            manifests = [manifest for manifest in yaml.safe_load_all(file) if manifest]
        for manifest in manifests:
            name = f"{path}: {manifest['kind']} {manifest['metadata']['name']}"
            try:
                by = validate(manifest, custom)
            except jsonschema.ValidationError as error:  # kubernetes_validate's is one too
                wrong += 1
                print(f"WRONG {name}: {str(error).splitlines()[0]}")
                continue
            print(f"ok    {name} ({by})" if by else f"left  {name}: no schema here")
            if by and "spec" in manifest:
                tried += 1
                broken = copy.deepcopy(manifest)
                broken["spec"]["notAField"] = 1
                if is_valid(broken, custom):
                    wrong += 1
                    print(f"WRONG {name}: a field that does not exist was taken; the validation is worth nothing")
    raise SystemExit(1 if wrong or not tried else 0)


if __name__ == "__main__":
    main()
