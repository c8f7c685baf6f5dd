#!/usr/bin/env python3
"""Writes cases.json: templates, variables, and the output of Jinja2.

Needs jinja2 3.1 (pip install 'jinja2==3.1.*'). The environment is that in which transformers compiles chat templates:
an immutable sandbox, trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes. Small cases are below.
Chat templates are the *.jinja files beside this script, rendered with each conversation of conversations.json. Their
formats are invented, with the constructs of published templates.
"""

import json
import pathlib
from datetime import datetime

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = datetime(2026, 3, 7, 14, 5, 9)  # what strftime_now reads


class Generation(Extension):
    """{% generation %} … {% endgeneration %}: prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_show"), [], [], body).set_lineno(line)

    def _show(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return env


VARS = {
    "s": "Hello World",
    "sp": "  padded\t\n",
    "u": "Grüße, 令牌 → émile",
    "q": "it's \"quoted\" \\ back\nline\ttab",
    "html": "<b>Tom & 'Jerry'</b>",
    "n": 7,
    "z": 0,
    "neg": -3,
    "f": 2.5,
    "t": True,
    "no": False,
    "nil": None,
    "l": [3, 1, 2],
    "words": ["banana", "Apple", "cherry", "apple"],
    "mixed": [1, "two", 3.5, None, True, [4, 5], {"k": "v"}],
    "e": [],
    "d": {"b": 2, "a": 1, "C": 3},
    "ed": {},
    "nested": {"x": {"y": [10, 20, {"z": "deep"}]}, "items": "shadow", "get": "me"},
    "users": [
        {"name": "Ann", "age": 30, "role": "admin", "tags": ["x", "y"]},
        {"name": "bob", "age": 25, "role": "user", "tags": []},
        {"name": "Cid", "age": 35, "role": "admin", "tags": ["z"]},
        {"name": "dan", "role": "guest"},
    ],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}, {"v": 5, "c": []}],
    "big": 18446744073709551615,
    "floats": [0.1, 1e16, 1e-5, 123456789.123, 1e22, -0.0, 100.0, 1.5e300, 0.0001, 3.0],
    "unicode": "naïve café \u00df \u01c5 \u2028 \U0001f600\u200d \x7f \x85",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi "},
        {"role": "assistant", "content": "Hello<|x|>"},
    ],
}

# Expressions, printed one by one.
EXPRESSIONS = (HERE / "expressions.txt").read_text().strip("\n").split("\n")

# Templates with all their text.
TEMPLATES = r"""
{% if t %}yes{% endif %}
{% if no %}yes{% elif n == 7 %}seven{% else %}no{% endif %}
{% if no %}a{% elif z %}b{% else %}c{% endif %}
{% if missing %}a{% else %}b{% endif %}
{% for x in l %}{{ x }},{% endfor %}
{% for x in e %}{{ x }}{% else %}empty{% endfor %}
{% for x in missing %}{{ x }}{% else %}none{% endfor %}
{% for x in 'abc' %}{{ x }}-{% endfor %}
{% for k in d %}{{ k }}{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}
{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} of {{ loop.length }} {% endfor %}
{% for x in l if x > 9 %}{{ x }}{% else %}nothing{% endfor %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}
{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}
{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}
{% for x in [1, 1, 2] %}{{ loop.changed(x) }} {% endfor %}
{% for x in l %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}
{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}
{% for x in l %}{% set outer = loop %}{% for y in e %}{% else %}{{ outer.index }}{% endfor %}{% endfor %}
{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x == 6 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{{ x }}{% break %}{% else %}never at the end of its body{% endfor %}
{% for x in l %}{{ x }}{% continue %}{% else %}never at the end of its body{% endfor %}
{% for x in l %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% else %}once at the end of its body{% endfor %}
{% for x in l %}{% for y in e %}{% else %}{{ x }}{% break %}{% endfor %}{{ x }}{% endfor %}
{% for x in l %}{% for y in e %}{% else %}{{ x }}{% continue %}{% endfor %}{{ x }}{% endfor %}
{% for x in l recursive %}{% for y in e %}{% else %}{{ x }}{% break %}{% endfor %}{{ x }}{% endfor %}
{% for x in range(3) %}{% for y in range(3) %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}
{% for i in tree recursive %}{{ i.v }}{% if i.c %}({{ loop(i.c) }}){% endif %}{% if not loop.last %},{% endif %}{% endfor %}
{% for i in tree recursive %}{{ loop.depth }}{{ loop(i.c) }}{% endfor %}
{% set x = 5 %}{{ x }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set (a, b) = (1, 2) %}{{ a }}{{ b }}
{% set a, b = 'xy' %}{{ a }}{{ b }}
{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}
{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}
{% set x = 0 %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{% endfor %}
{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x is defined }}
{% set ns = namespace(x=0, seen=[]) %}{% for i in l %}{% set ns.x = ns.x + i %}{% set ns.seen = ns.seen + [i] %}{% endfor %}{{ ns.x }}{{ ns.seen }}
{% set ns = namespace() %}{{ ns.a is defined }}{% set ns.a = 1 %}{{ ns.a }}{{ ns['a'] }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}
{% set ns = namespace(done=false) %}{% for i in l if not ns.done %}{{ i }}{% if i == 1 %}{% set ns.done = true %}{% endif %}{% endfor %}
{% set x %}block {{ n }}{% endset %}[{{ x }}]
{% set x | upper %}block {{ n }}{% endset %}[{{ x }}]
{% set x | trim | replace('b', 'B') %}  block  {% endset %}[{{ x }}]
{% filter upper %}abc {{ s }}{% endfilter %}
{% filter replace('a', 'b') | upper %}banana{% endfilter %}
{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }}
{% macro m(a, b=a ~ '!') %}{{ a }}{{ b }}{% endmacro %}{{ m('x') }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}
{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}{{ m(none) }}
{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}
{% macro m(x) %}<{{ caller() }}:{{ x }}>{% endmacro %}{% call m(1) %}body{% endcall %}
{% macro m() %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(x) m() %}({{ x }}){% endcall %}
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}
{% macro fact(k) %}{% if k <= 1 %}1{% else %}{{ k * (fact(k - 1)|int) }}{% endif %}{% endmacro %}{{ fact(10) }}
{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}late{% endmacro %}{{ a() }}
{% macro m() %}{{ x }}{% endmacro %}{% set x = 'after' %}{{ m() }}
{% set x = 1 %}{% macro m() %}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}
{% macro m(x) %}{{ x }}{% endmacro %}{{ m }}{{ m.name }}{{ m.arguments }}
{% macro m() %}  text  {% endmacro %}[{{ m()|trim }}]
{% macro m(a, b, c='d') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 2], **{'c': 3}) }}
{% macro m(n) %}{% if n > 0 %}{{ n }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}
{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
{% with %}{% set q1 = 1 %}{{ q1 }}{% endwith %}{{ q1 is defined }}
{% generation %}gen {{ n }}{% endgeneration %} after
{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}
{% raw %}{{ not }} {% parsed %} {# here #}{% endraw %}
{%- raw -%}  {{ x }}  {%- endraw -%} z
{% raw %}a{% endraw %}b{% raw %}c{% endraw %}
a{# comment #}b
a {#- comment -#} b
{# multi
line #}x
{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}
{% set j = joiner() %}{{ j() }}|{{ j() }}|{{ j() }}
{% set c = cycler('odd', 'even') %}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.current }}
{% for g in users|groupby('role') %}{{ g.grouper }}:{{ g.list|length }} {% endfor %}
{% for role, list in users|groupby('role') %}{{ role }}:{{ list|map(attribute='name')|join(',') }} {% endfor %}
{% for row in range(5)|batch(2) %}{{ row|join('') }};{% endfor %}
{{ {'a': {'b': 1}} }}
{{ {'a': {'b': 1}}['a']['b'] }}
{{ '}}' }}
{{ "%}" }}
{{ '{{' ~ '{%' }}
{% if '%}' == '%}' %}same{% endif %}
{{ 1 }}{{ 2 }}
{{ s -}}   tail
head   {{- s }}
head   {{- s -}}   tail
{{+ s }}
text {%- if t -%} inner {%- endif -%} end
text {%+ if t %} inner {% endif +%} end
{% if t -%}
  indented
{%- endif %}
{% if t: %}colon{% endif %}
{% for x in l: %}{{ x }}{% endfor %}
{{ x if x is defined else 'undef' }}
{{ messages[0]['role'] }}: {{ messages[0]['content'] }}
{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] | trim + '<|end|>' }}{% endfor %}
{% for m in messages %}{% if loop.first and m.role == 'system' %}{% set system = m.content %}{% continue %}{% endif %}{{ system is defined }}{% endfor %}
{% if messages[0].role == 'system' %}{% set sys = messages[0].content %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ sys }}/{{ rest|length }}
{% set messages = messages[1:] %}{{ messages|length }}
{% set n = n + 1 %}{{ n }}
{{ raise_exception if no else 'fine' }}
{% set d2 = dict(d, z=26) %}{{ d2 }}{{ d }}
{% for x in (1, 2) %}{{ x }}{% endfor %}
{% for x in 1, 2, 3 %}{{ x }}{% endfor %}
{% for x in l|sort %}{{ x }}{% endfor %}
{% for x in l if x is odd %}{{ x }}{{ loop.last }}{% endfor %}
{% for k, v in {'a': 1}.items() if v %}{{ k }}{% endfor %}
{% for x in l %}{{ loop }}{% endfor %}
{% set x = namespace(v=1) %}{% set y = x %}{% set y.v = 2 %}{{ x.v }}
{% set x = l %}{% set x = x + [4] %}{{ x }}{{ l }}
{% set a = b = 1 %}
{{ [1,2,3] | map('string') | join(',') }}
{{ (1, 'a') }}{{ [(1, 2), [3]] }}
{{ s|upper|lower|title }}
{{ undefined_name }}|{{ d.nothing }}|{{ l[99] }}
{{ users|length ~ ' users' }}
{% for u in users %}{{ u.age|default('?') }}{{ ',' if not loop.last }}{% endfor %}
{% for u in users -%} {{ u.name }} {%- endfor %}
{{ d.items() | list | length }}{{ d.keys() | sort | join }}
{% if d and l and s and not e and not ed %}truthy{% endif %}
{% if l|length == 3 and 'a' in d and d.a == 1 %}all{% endif %}
{% set x = 'a' if t else 'b' %}{{ x }}
{{ 'a' ~ ('b' if t) ~ 'c' }}
{{ 'x' * 0 }}|{{ [] * 3 }}|{{ -1 * 'x' }}
{{ none }}{{ true }}{{ 1.0 }}{{ '' }}
{%set x=1%}{{x}}{%if x==1%}y{%endif%}
{{s}}{{   s   }}{{
s
}}
""".strip("\n").split("\n")

# White space around tags, as Python literals.
LAYOUTS = [
    "a\n{% if t %}\nb\n{% endif %}\nc\n",
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n\n",
    "  {% if t %}x{% endif %}  \n  y",
    "\t{% for x in l %}\n\t{{ x }}\n\t{% endfor %}\n",
    "  {{ s }}\n  {{ s }}\n",
    "  {# comment #}\nnext\n  {# c #} tail",
    "  {#- c -#}\n\n  next",
    "a {% if t %} b {% endif %} c",
    "a\n  {%+ if t %}b{% endif %}\n",
    "a\n  {%- if t %}b{% endif -%}\n  c",
    "a\r\nb\rc\n{% if t %}\r\nx\r\n{% endif %}\r\n",
    "{{ 'a\r\nb'|length }}",
    "{{ 'a\nb' }}\n\n",
    "\n\n{% if t %}\n\n\nx{% endif %}\n\n",
    "{% raw %}\n  {{ x }}\n{% endraw %}\nend",
    "  {% raw %}  x  {% endraw %}  \nend",
    "a\n  {% raw %}b{% endraw %}\n  {%- raw -%} c {%- endraw -%} d",
    "{% set x %}\n  y\n{% endset %}\n[{{ x }}]",
    "{% macro m() %}\n  line\n{% endmacro %}\n{{ m() }}|\n{{- m() }}|",
    "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\n!",
    "{%- for x in l %}\n{{- x }}\n{% endfor -%}\n  !",
    "\u00a0{% if t %}x{% endif %}",
    "a\n\u00a0\u2003{% if t %}x{% endif %}",
    "{{ s }}\n{{ s -}}\n\n{{ s }}",
    "x{{ '\n' }}{% if t %}\ny{% endif %}",
    "{% if t %}\n{% if t %}\n  {{ n }}\n{% endif %}\n{% endif %}\n",
    "    {% if t %}{# c #}\n    x\n    {% endif %}{# d #}\n  y",
    "{% if t +%}\nx{% endif +%}\ny",
    "{#- a #}\n{# b +#}\nc",
    "{% for m in messages %}\n    {%- if m.role == 'user' %}\n        {{- 'U:' + m.content }}\n    {%- else %}\n        {{- 'O:' + m.content }}\n    {%- endif %}\n{%- endfor %}\n",
    "",
    "\n",
    "\n\n",
    "no tags",
    "{",
    "{ { } } % # {",
    "a{b}c",
    "{{ {'a':{'b':{}}} }}}",
    "{{ s }}}",
    "{{{'a':1}.a}}",
    "{{ '\\n' }}{{ \"\\u00e9\" }}",
    "{{ -1 }}{{- 1 -}}{{ 1-1 }}",
    "{{ 5 -}} x",
    "{% if 1 -%} a {%- else -%} b {%- endif %}",
    "{%\nif\nt\n%}x{%\nendif\n%}",
    "\n  \n{% if t %}a{% endif %}\n  \n",
    "x\n{{ n }}\ny\n{% set q9 = 1 %}\nz",
]

# Templates that must fail. `exact` below determines whether the message must equal Jinja2's.
ERRORS = (HERE / "errors.txt").read_text().strip("\n").split("\n")

# Parts of templates whose message need not equal that of Python or Jinja2; they only have to fail.
FREE_ERRORS = [
    "'\\xZZ'", "08", "range(1, 2, 0)", "include", "extends", "import", "{% break %}", "|batch }}",
    "dict(1)", "dict([1])", "|trim(1)", ".strip(1)", "startswith(1)", "indent('a'", "{[1]: 2}", "[1]|map|",
    "1|nofilter", "1 is notest", "a[] }}", "a[ }}", "{% set 1", "{{ 1\n", "raise_exception()", "'nothing') }}",
    "{{ 1.5 * 'b' }}", "{% call m() %}y", "None|length", "call x", "truncate(2)", "''.split('')", "notest", "nofilter", "(1 }}",
    "[1, 2 }}", "{1: } }}", "{% 1 %}", "if t\n", "for in l", "{{ x is string is defined", "{{ 1", "{% if t",
    "range|tojson", "{% for x in l %}{{ loop(l)", "unterminated", "{{ [1, 'a']|max", "l['a':]", "{'a':1}|list",
]


def line_of(error):
    trace = error.__traceback__
    line = getattr(error, "lineno", None)
    while trace:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def render(source, variables):
    """The text, or the error with its line."""
    try:
        return {"text": environment().from_string(source).render(**variables)}
    except Exception as error:  # of any type: the template failed
        message = str(error)
        if isinstance(error, KeyError):
            message = repr(error.args[0])
        return {"error": message, "line": line_of(error)}


CONVERSATIONS = json.loads((HERE / "conversations.json").read_text())


def main():
    cases = []
    for expression in EXPRESSIONS:
        source = "{{ " + expression + " }}"
        cases.append({"template": source, **render(source, VARS)})
    for source in TEMPLATES + LAYOUTS:
        cases.append({"template": source, **render(source, VARS)})
    for source in ERRORS:
        outcome = render(source, VARS)
        if "text" in outcome:
            raise SystemExit(f"meant to fail, but prints: {source}")
        free = any(part in source for part in FREE_ERRORS)
        cases.append({"template": source, "exact": not free, **outcome})
    chats = []
    for path in sorted(HERE.glob("*.jinja")):
        source = path.read_text()
        for name, variables in CONVERSATIONS.items():
            chats.append({"template": path.name, "conversation": name, **render(source, variables)})
    print(len(cases), "cases,", len(chats), "chats,", sum("error" in c for c in cases + chats), "errors")
    out = {"variables": VARS, "cases": cases, "chats": chats}
    (HERE / "cases.json").write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
