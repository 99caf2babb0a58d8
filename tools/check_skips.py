#!/usr/bin/env python3
"""Fails if a test was skipped for any reason but missing hardware.

    tools/check_skips.py build/release/tests.xml      (what `ctest --output-junit` wrote)

A test that lacks hardware says so: "this CPU has no ...", "this machine has no ...".
"""
import re
import sys
import xml.etree.ElementTree as xml

HARDWARE = re.compile(r"\bthis (CPU|machine) has no ", re.IGNORECASE)


def reason(case):
    """What the test said when it gave up: GoogleTest's words after "Skipped", or all of it."""
    said = case.findtext("system-out") or ""
    after = re.search(r": Skipped\s*\n(.*)", said)
    return (after[1] if after else said).strip() or "it does not say why"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    cases = list(xml.parse(sys.argv[1]).getroot().iter("testcase"))
    if not cases:
        sys.exit(f"{sys.argv[1]} has no tests")
    skipped = [case for case in cases if case.get("status") != "run" and case.find("failure") is None]
    wrong = [case for case in skipped if not HARDWARE.search(reason(case))]
    for case in skipped:
        print(f"{'skipped' if case in wrong else 'no such hardware'}: {case.get('name')}: {reason(case)}")
    print(f"{len(cases)} tests, {len(skipped)} skipped, {len(wrong)} of them for no reason of hardware")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
