"""Configuration of Sphinx for scripts/docs-site. MyST reads CommonMark with tables, as code hosts do, so the pages need no
other syntax."""
project = "Switchyard"
author = "The Switchyard authors"
copyright = "the Switchyard authors, Apache-2.0"  # the name that Sphinx reads
extensions = ["myst_parser"]
myst_heading_anchors = 6  # links to headings use the same anchors as code hosts
highlight_language = "none"  # of indented blocks
# A highlighter that cannot read a block shows it without colours; the console highlighter reads no multi-line strings.
suppress_warnings = ["misc.highlighting_failure"]
html_theme = "furo"
html_title = "Switchyard"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
