"""scripts/docs-site builds the documentation without a warning."""
import re
import subprocess

from debian_root import ROOT


def test_the_site_builds_without_warnings_and_has_every_page():
    done = subprocess.run([ROOT / "scripts/docs-site"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    site = ROOT / "build/site"
    listed = set(re.findall(r'href="([^"#]+\.html)"', (site / "index.html").read_text()))
    assert {"README.html", "docs/quickstart.html", "docs/install.html", "ARCHITECTURE.html"} <= listed
    assert all((site / page).exists() for page in listed if not page.startswith("http"))
    # Blocks of code in lists, which not every Markdown processor reads as such.
    assert "<pre>" in (site / "docs/quickstart.html").read_text()
