#!/usr/bin/env python3
"""Writes cases.json: templates, variables, and what Jinja2 makes of them.

Needs jinja2 3.1 (pip install 'jinja2==3.1.*'). The environment is the one that transformers compiles chat templates
in: an immutable sandbox, trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes. Small cases stand
below; chat templates are the *.jinja files beside this script, rendered with each conversation of conversations.json.
Their formats are made up, their means are those of the templates that models come with.
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
EXPRESSIONS = r"""
1 + 2
1 - 2 - 3
2 * 3 + 4
2 + 3 * 4
(2 + 3) * 4
7 / 2
6 / 2
7 // 2
-7 // 2
7 % 3
-7 % 3
7.5 // 2
-7.5 % 2
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
2 ** 0.5
1 + 2.0
1e3
1.5e-7
1_000
0x1F
0b101
0o17
1_0.5
- n
+ n
+ t
- f
--n
1 ~ 2 ~ 'x'
1 + 1 ~ 2
none ~ true
"a" "b" 'c'
'a' + 'b' * 3
3 * 'ab'
[1] * 3
[1, 2] + [3]
(1, 2) + (3,)
()
(1,)
(1)
1, 2
[]
[1, 'a', none, true, 2.0, [3], (4,), {'k': 'v'}]
{}
{'a': 1, 2: 'b', none: 3, (1, 2): 4}
{'a': 1, 'a': 2}
[1, 2, 3,]
{'a': 1,}
'\n\t\\\'\"'|length
'\x41\u00e9\101\q\U0001F600'
'it\'s'
"say \"hi\""
"multi \
line"
1 < 2
1 < 2 < 3
1 < 3 < 2
1 == 1.0
1 == true
'a' < 'b'
'Z' < 'a'
[1, 2] < [1, 3]
[1, 2] == [1, 2]
(1, 2) == [1, 2]
{'a': 1} == {'a': 1.0}
none == none
none != 1
1 != 2 and 2 >= 2 and 3 <= 3
'ell' in s
'xyz' not in s
1 in l
9 in l
'a' in d
'zz' in d
not true
not 1 == 2
not not 0
true and 'x'
0 and 'x'
'' or 'y'
'a' or 'b'
1 or missing.boom
n is defined
missing is defined
missing is undefined
missing is not defined
nil is none
nil is defined
n is number
f is number
t is number
n is integer
t is integer
f is integer
f is float
n is float
s is string
n is string
d is mapping
l is mapping
l is sequence
s is sequence
d is sequence
n is sequence
l is iterable
n is iterable
d is iterable
nil is iterable
t is boolean
n is boolean
t is true
n is true
no is false
z is false
n is odd
n is even
n is divisibleby 7
n is divisibleby(3)
n is eq 7
n is equalto(7)
n is ne 8
n is lt 8
n is gt 6
n is le 7
n is ge 8
n is in [7, 8]
n is in(l)
n is sameas n
none is sameas none
1 is sameas 1.0
range is callable
s is callable
'ABC' is upper
'abc' is lower
'aBc' is upper
'upper' is filter
'nofilter' is filter
html|e is escaped
n is not odd
n is odd and n is not even
not n is odd
missing is none
missing is string
missing == missing
missing == none
missing == ''
missing|length
missing|list
missing|string|length
missing or 'fallback'
missing|default('dflt')
missing|d('dflt')
nil|default('dflt')
nil|default('dflt', true)
''|default('dflt', boolean=true)
missing|default
d.missing|default('x')
d['missing'] is defined
'yes' if t else 'no'
'yes' if no else 'no'
'yes' if no
('yes' if no) is defined
'a' if no else 'b' if no else 'c'
(1 if t else 2) + 3
s.upper()
s.lower()
s.title()
"they're bill's friends-hello".title()
s|title
"they're bill's (friends) [x] -hello {a} <b>"|title
s.capitalize()
s|capitalize
s.swapcase()
u.upper()
u.lower()
u|upper
u|capitalize
u.title()
sp.strip()
sp.lstrip()
sp.rstrip()|length
sp|trim
'xxaxx'.strip('x')
'xyaxy'.lstrip('yx')
'xxaxx'|trim('x')
'xyz'.rstrip('zy')
'éàé'.strip('é')
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
'a,b,,c'.rsplit(',', 1)
'a b  c '.split()
' a b  c '.split(none, 1)
' a b  c '.rsplit(none, 1)
' a b  c '.rsplit(maxsplit=2)
'abc'.split('x')
''.split()
''.split(',')
'a--b--c'.split('--')
'a--b--c'.rsplit('--')
'</think>x</think>y'.split('</think>')[-1]
'a\nb\r\nc\n'.splitlines()
'a\nb\r\nc\n'.splitlines(true)
'k=v=w'.partition('=')
'k=v=w'.rpartition('=')
'kv'.partition('=')
'kv'.rpartition('=')
s.startswith('Hello')
s.startswith('World', 6)
s.startswith(('x', 'H'))
s.endswith('World')
s.endswith(('x', 'ld'))
s.endswith('lo', 0, 5)
s.find('o')
s.find('o', 5)
s.find('zz')
s.rfind('o')
s.index('W')
u.find('→')
u.count('é')
s.count('l')
s.count('')
s.count('o', 5)
s.replace('l', 'L')
s.replace('l', 'L', 1)
'abc'.replace('', '-')
'abc'.replace('', '-', 2)
s|replace('o', '0')
s|replace('o', '0', 1)
n|replace('7', 'x')
'-'.join(['a', 'b'])
', '.join(words)
''.join(d)
'{} and {}'.format('a', 1)
'{1} {0} {name}'.format('a', 'b', name='c')
'{0[0]} {1.a} {2[a]}'.format([1], d, d)
'{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd')
'{:05d} {:+d} {:x} {:#x} {:b} {:,}'.format(42, 42, 255, 255, 5, 1234567)
'{:.2f} {:8.3f} {:e} {:g} {:.0%}'.format(3.14159, 2.5, 12345.678, 0.00001, 0.25)
'{{}} {!r} {!s}'.format('q', 'q')
'%s is %d and %.2f %% %r' % ('a', 3, 2.5, 'q')
'%5s|%-5s|%05d|%+d|%x|%X|%o' % ('a', 'b', 42, 42, 255, 255, 8)
'%s' % 'one'
'%s' % l
'%(a)s-%(b)d' % {'a': 'x', 'b': 2}
'%e %g %G %i' % (12345.678, 0.0001, 1e20, 3.9)
'%s %s'|format('a', 'b')
'%(x)s'|format(x=1)
'abc'.zfill(6)
'-42'.zfill(6)
'ab'.ljust(5) ~ '|'
'ab'.rjust(5, '*')
'ab'.center(5, '-')
'abc'.center(6, '-')
'ab'.center(7)
'ab'|center(7)
'abc'|center(8)
'123'.isdigit()
'12a'.isdigit()
''.isdigit()
'abc'.isalpha()
'ab1'.isalpha()
'ab1'.isalnum()
'é'.isalpha()
' \n'.isspace()
'ABC'.isupper()
'A1'.isupper()
'abc'.islower()
'1'.islower()
'½'.isnumeric()
'abc'.isascii()
'prefix-body'.removeprefix('prefix-')
'body.txt'.removesuffix('.txt')
'body'.removesuffix('')
s[0]
s[-1]
s[1:4]
s[:3]
s[-3:]
s[::-1]
s[::2]
s[8:2:-2]
s[100:]
s[:-100]
u[7]
u[7:9]
u[::-1]
u|length
u|reverse
s[50]|default('none')
l[0]
l[-1]
l[1:]
l[::-1]
l[5]|default('out')
l[-5] is defined
(1, 2, 3)[1:]
range(5)[2]
range(5)[::2]|list
range(10)[1:4]|list
range(3)
range(1, 4)|list
range(10, 0, -3)|list
range(0)|list
range(1, 10, 2)
'abc'[1:][0]
d.a
d['a']
d.get('a')
d.get('zz')
d.get('zz', 'dflt')
d.items()
d.keys()
d.values()
d.items()|list
d|list
d|length
d.keys()|list
d.values()|sum
nested.x.y[2].z
nested['x']['y'][0]
nested.items is callable
nested['items']
nested.get('get')
nested.x.y.2.z
l.0
users[0].name
users|map(attribute='name')|list
users|map(attribute='name')|join(', ')
users|map(attribute='age', default=0)|list
users|map(attribute='tags.0', default='-')|list
words|map('upper')|list
words|map('replace', 'a', '_')|join(' ')
l|map('string')|join
users|selectattr('role', 'equalto', 'admin')|map(attribute='name')|list
users|selectattr('age')|map(attribute='name')|list
users|selectattr('age', 'defined')|list|length
users|rejectattr('role', 'eq', 'admin')|map(attribute='name')|list
users|rejectattr('tags')|map(attribute='name')|list
users|selectattr('role', 'in', ['admin', 'guest'])|map(attribute='name')|list
[1, 2, 3, 4]|select('odd')|list
[1, 2, 3, 4]|reject('odd')|list
[1, 2, 3, 4]|select('divisibleby', 2)|list
[0, 1, '', 'a', none]|select|list
[0, 1, '', 'a', none]|reject|list
[1, 2, 3]|select('gt', 1)|list
[1, 2, 3]|select('>', 1)|list
l|first
l|last
e|first is defined
e|last|default('none')
s|first
s|last
d|first
l|length
l|count
l|sort
l|sort(reverse=true)
words|sort
words|sort(case_sensitive=true)
words|sort(reverse=true, case_sensitive=true)
users|selectattr('age', 'defined')|sort(attribute='age')|map(attribute='name')|list
users|sort(attribute='role,name')|map(attribute='name')|list
words|unique|list
words|unique(case_sensitive=true)|list
users|unique(attribute='role')|map(attribute='name')|list
l|min
l|max
words|min
words|max
e|max|default('nothing')
[1, 2.5]|max
users|selectattr('age', 'defined')|max(attribute='age')
l|sum
[1.5, 2]|sum
[]|sum
[[1], [2]]|sum(start=[])
users|selectattr('age', 'defined')|sum(attribute='age')
l|reverse|list
'abc'|reverse
l|join
l|join(', ')
mixed|join('|')
users|join(', ', attribute='name')
d|join('-')
s|list
d|dictsort
d|dictsort(true)
d|dictsort(by='value')
d|dictsort(reverse=true)
d|items|list
missing|items|list
d|dictsort|map('first')|list
range(7)|batch(3)|list
range(7)|batch(3, 'x')|list
range(7)|slice(3)|list
range(7)|slice(3, 'x')|list
users|groupby('role')|map('first')|list
users|groupby('role')|map(attribute='grouper')|list
users|groupby('age', default=0)|map('first')|list
words|groupby(0)|list
'42'|int
'4_2'|int
' 42 '|int
'4.7'|int
'abc'|int
'abc'|int(9)
'abc'|int(default=-1)
'abc'|int(base=99)
'ff'|int(base=16)
'0xff'|int(0, 16)
4.9|int
-4.9|int
true|int
nil|int
'3.5'|float
'abc'|float
'abc'|float(1.5)
'1e3'|float
'inf'|float
3|float
5|string + 'x'
neg|abs
-2.5|abs
2.567|round(2)
2.5|round
3.5|round
2.1|round(0, 'ceil')
2.9|round(0, 'floor')
2.567|round(1, 'ceil')
7|round
1234|round(-2)
2.5|round|int
0.1 + 0.2
1/3
floats
floats|join(' ')
1e100
1e15
1e16
123456789012345678
2 ** 62 * 2
big
big + 1
10 ** 20
[1.0, 2.50]|string
html|e
html|escape
html|e|e
html|forceescape
html|safe
html|safe ~ '<i>'
(html|safe) + '<i>'
'<i>' + (html|safe)
html|e|upper
html|string|e
'a b&c/d?é'|urlencode
none|select|list
none|reject|list
none|select('odd')|list
none|selectattr('x')|list
none|rejectattr('x')|list
none|selectattr('x', 'equalto', 1)|list|length
none|map('upper')|list
none|map(attribute='x')|list
none|map|list
none|select('notest')|list
none|selectattr|list
none|map('nofilter')|list|length
false|select|list
false|reject|list
false|select('odd')|list
false|selectattr('x')|list
false|rejectattr('x')|list
false|selectattr('x', 'equalto', 1)|list|length
false|map('upper')|list
false|map(attribute='x')|list
false|map|list
false|select('notest')|list
false|selectattr|list
false|map('nofilter')|list|length
0|select|list
0|reject|list
0|select('odd')|list
0|selectattr('x')|list
0|rejectattr('x')|list
0|selectattr('x', 'equalto', 1)|list|length
0|map('upper')|list
0|map(attribute='x')|list
0|map|list
0|select('notest')|list
0|selectattr|list
0|map('nofilter')|list|length
0.0|select|list
0.0|reject|list
0.0|select('odd')|list
0.0|selectattr('x')|list
0.0|rejectattr('x')|list
0.0|selectattr('x', 'equalto', 1)|list|length
0.0|map('upper')|list
0.0|map(attribute='x')|list
0.0|map|list
0.0|select('notest')|list
0.0|selectattr|list
0.0|map('nofilter')|list|length
''|select|list
''|reject|list
''|select('odd')|list
''|selectattr('x')|list
''|rejectattr('x')|list
''|selectattr('x', 'equalto', 1)|list|length
''|map('upper')|list
''|map(attribute='x')|list
''|map|list
''|select('notest')|list
''|selectattr|list
''|map('nofilter')|list|length
[]|select|list
[]|reject|list
[]|select('odd')|list
[]|selectattr('x')|list
[]|rejectattr('x')|list
[]|selectattr('x', 'equalto', 1)|list|length
[]|map('upper')|list
[]|map(attribute='x')|list
[]|map|list
[]|select('notest')|list
[]|selectattr|list
[]|map('nofilter')|list|length
{}|select|list
{}|reject|list
{}|select('odd')|list
{}|selectattr('x')|list
{}|rejectattr('x')|list
{}|selectattr('x', 'equalto', 1)|list|length
{}|map('upper')|list
{}|map(attribute='x')|list
{}|map|list
{}|select('notest')|list
{}|selectattr|list
{}|map('nofilter')|list|length
()|select|list
()|reject|list
()|select('odd')|list
()|selectattr('x')|list
()|rejectattr('x')|list
()|selectattr('x', 'equalto', 1)|list|length
()|map('upper')|list
()|map(attribute='x')|list
()|map|list
()|select('notest')|list
()|selectattr|list
()|map('nofilter')|list|length
missing|select|list
missing|reject|list
missing|select('odd')|list
missing|selectattr('x')|list
missing|rejectattr('x')|list
missing|selectattr('x', 'equalto', 1)|list|length
missing|map('upper')|list
missing|map(attribute='x')|list
missing|map|list
missing|select('notest')|list
missing|selectattr|list
missing|map('nofilter')|list|length
'a b'|wordwrap(1)
'The quick brown fox jumps over the lazy dog'|wordwrap(10)
'The quick brown fox'|wordwrap(9, wrapstring='|')
'well-known half-baked ideas--and others'|wordwrap(8)
'well-known half-baked ideas'|wordwrap(6, break_on_hyphens=false)
'abcdefghijklmnop qr'|wordwrap(5)
'abcdefghijklmnop qr'|wordwrap(5, false)
'abcdefghijklmnop qr'|wordwrap(5, break_long_words=false)
'a-b-c-d-e-f-g-h'|wordwrap(4)
'---abc---def---'|wordwrap(4)
'  lead and  double   spaces  '|wordwrap(8)
'one\n\ntwo three four\n'|wordwrap(6)
u|wordwrap(5)
''|wordwrap
'tab\tand\x0bvertical'|wordwrap(4)
''|wordwrap(0)
0|filesizeformat
1|filesizeformat
'1'|filesizeformat
999|filesizeformat
1000|filesizeformat
1000000|filesizeformat
1024|filesizeformat(true)
1234567890|filesizeformat
1234567890|filesizeformat(binary=true)
(10 ** 30)|filesizeformat
2.5|filesizeformat
'12345.6'|filesizeformat
'<p>a <b>bold</b>\n  &amp; more</p> '|striptags
'a <!-- no <b> --> b < c'|striptags
'x &lt;b&gt; &#65;&#x42; &nope; &nbsp;y'|striptags
{'class': 'a b', 'id': 3, 'no': none, 'q': '"<'}|xmlattr
{'class': 'a'}|xmlattr(false)
{}|xmlattr
{'a b': 1}|xmlattr
none|urlencode
7|urlencode
{'a b': 'c/d', 'é': 1}|urlencode
[('a', 1), ('b', 'x y')]|urlencode
'/a b'|urlencode
[]|random is undefined
[7]|random
'x'|random
mixed|pprint
{'b': 1, 'a': [1, 2]}|pprint
'text'|pprint
none|pprint
users|pprint
nested|pprint
(1, 'a' * 90)|pprint|length
['upper' is test, 'odd' is test, 'nope' is test]
'see https://a.bc/d?e=f&g, (www.x.org). <b> & me@x.org! mailto:me@x.org @you x.com.'|urlize
'http://127.0.0.1:80/x http://[::1:2]/ ftp://a.b/c (https://en.org/wiki/A_(b))'|urlize
'https://example.com/a/long/path'|urlize(10, true, target='_blank', rel='me')
'ftp://a.b/c tel:123 tel:'|urlize(extra_schemes=['ftp://', 'tel:'])
'x'|urlize(extra_schemes=['?'])
' https://ü.de/é\n\nwww.a.b '|urlize
'foo bar baz qux'|truncate(9)
'foo bar baz qux'|truncate(9, true)
'foo bar baz qux'|truncate(11)
'foo bar baz qux'|truncate(11, false, '...', 0)
'foobarbaz'|truncate(5, false, '', 0)
'a\nb\n\nc'|indent
'a\nb\n\nc'|indent(2, true)
'a\nb\n\nc'|indent(2, blank=true)
'a\nb'|indent('>> ')
'a\nb\n'|indent(2)
''|indent(2, true)
'one two, three-four'|wordcount
d|tojson
mixed|tojson
u|tojson
q|tojson
unicode|tojson
unicode|tojson(ensure_ascii=true)
html|tojson
floats|tojson
big|tojson
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
(1, 2)|tojson
[]|tojson
{}|tojson
d|tojson(indent=2)
nested|tojson(indent=4)
[]|tojson(indent=2)
{'a': [], 'b': {}}|tojson(indent=2)
d|tojson(indent=0)
d|tojson(indent='\t')
d|tojson(separators=(',', ':'))
d|tojson(indent=2, separators=(', ', '=> '))
d|tojson(sort_keys=true)
'x'|tojson ~ 'y'
nil|tojson
t|tojson
q
[q]
unicode
[unicode]
["it's", 'say "x"', 'both \' and "']
mixed
d
nested
t
nil
f
users[1]
l|string
s|attr('upper') is callable
d|attr('a') is defined
s|length > 5 and s|length < 20
-l|length if no else 1
n|string|length
(l|length) * 2
l|length * 2
-n|abs
[1,2,3][-1]|string
{'a': {'b': 1}}.a.b
{'a': 1}['a']
'abc'['upper']()
'x'.upper().lower()|upper
l.index(2)
l.count(3)
(1, 2, 2).count(2)
words.index('cherry')
dict(a=1, b=2)
dict([('x', 1)], y=2)
dict(d, a=9)
dict(**d)
dict(missing)
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y, %H:%M:%S %A %j')
'%02d:%02d' % (5, 7)
namespace(a=1).a
[namespace(a=1)]|length
loop is defined
true is boolean and True is boolean and None is none
[true, True, false, none]
users[0]['name'] ~ ' ' ~ users[0].age
users[3].age is defined
users[3].age|default('unknown')
'%s' % (none,)
'tab\there'
d == {'C': 3, 'a': 1, 'b': 2}
d.items()|first
'a' is in 'abc'
s is not none and s is string and s|length
messages[-1].role == 'assistant'
messages[::-1]|map(attribute='role')|list
messages[1:]|length
messages|selectattr('role', 'equalto', 'user')|list|last
(messages|last).content
messages|map(attribute='content')|map('trim')|join('/')
l is sameas l
'abc'|list|join('.')
1.5|string
1.0|int|string
1 if 'a' is defined else 2
[x for x in l] if no else 1
""".strip("\n").split("\n")

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

# What must fail; whether the message must match to the letter is decided by `exact` below.
ERRORS = r"""
{{ raise_exception('two users speak in a row') }}
{{ raise_exception('bad role: ' ~ messages[0].role) }}
{% for m in messages %}{% if m.role == 'user' %}{{ raise_exception("line two") }}{% endif %}{% endfor %}
{{ missing.attr }}
{{ missing['item'] }}
{{ missing() }}
{{ missing + 1 }}
{{ 'a' + missing }}
{{ 1 + missing }}
{{ missing < 1 }}
{{ -missing }}
{{ d.zz.yy }}
{{ d.zz() }}
{{ l.foo.bar }}
{{ nil.x.y }}
{{ s.nomethod() }}
{{ n.x.y }}
{{ l[99].x }}
{{ users[3].age + 1 }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ [1] + 'a' }}
{{ 'a' - 'b' }}
{{ none + 1 }}
{{ d + d }}
{{ 'a' * 'b' }}
{{ 1.5 * 'b' }}
{{ 1 < 'a' }}
{{ 'a' >= 1 }}
{{ none > 1 }}
{{ d < d }}
{{ 1 / 0 }}
{{ 1.0 / 0 }}
{{ 1 // 0 }}
{{ 1 % 0 }}
{{ 1 in 2 }}
{{ 1 in 'abc' }}
{{ 1 in none }}
{{ n() }}
{{ none() }}
{{ s() }}
{{ l|length() + 'x' }}
{{ n|length }}
{{ (l|select)|length }}
{{ none|length }}
{{ l.append(4) }}
{{ d.update({'a': 2}) }}
{{ d.pop('a') }}
{% set _ = l.append(1) %}
{% for x in n %}{% endfor %}
{% for x in l if loop.first %}{% endfor %}
{% for x in none %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for a, b in [(1,)] %}{% endfor %}
{% set a, b = 1 %}
{% set a, b = [1] %}
{% set d.x = 1 %}
{% set nope.x = 1 %}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(b=1) }}
{% macro m(a) %}{{ a.b }}{% endmacro %}{{ m() }}
{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
{% for x in l %}{{ loop(l) }}{% endfor %}
{{ range(200000) }}
{{ range(1, 2, 0) }}
{{ missing|tojson }}
{{ [missing]|tojson }}
{{ range|tojson }}
{{ range(3)|tojson }}
{{ {(1, 2): 3}|tojson }}
{{ {[1]: 2} }}
{{ {{}: 2} }}
{{ s.index('zz') }}
{{ l.index(99) }}
{{ ''.split('') }}
{{ ','.join([1]) }}
{{ 'abc'[::0] }}
{{ l['a':] }}
{{ missing|int }}
{{ missing|indent }}
{{ nil|indent }}
{{ 'x'|abs }}
{{ [1, 'a']|sort }}
{{ [1, 'a']|max }}
{{ ['a']|sum }}
{{ [1]|map('nofilter')|list }}
{{ [1]|select('notest')|list }}
{{ [1]|map|list }}
{{ 1|list }}
{{ '%d' % 'a' }}
{{ '%s %s' % 'a' }}
{{ '%s' % (1, 2) }}
{{ '{} {}'.format(1) }}
{{ '{x}'.format(1) }}
{{ 'a' is divisibleby 2 }}
{{ 1|nofilter }}
{{ 1 is notest }}
{% if %}{% endif %}
{% if t %}
{% for x in l %}
{% for x l %}{% endfor %}
{% for in l %}{% endfor %}
{% endif %}
{% if t %}{% endfor %}
{% for x in l %}{% endif %}{% endfor %}
{% unknown %}
{% if t %}{% unknown %}{% endif %}
{% do x %}
{{ }}
{{ 1 + }}
{{ 1 1 }}
{{ (1 }}
{{ [1, 2 }}
{{ {1: } }}
{{ 'unterminated }}
{{ $ }}
{{ a b }}
{{ a. }}
{{ a[ }}
{{ a[] }}
{{ ) }}
{{ (] }}
{{ f(a=1, 2) }}
{{ f(**d, 1) }}
{{ 1
{% if t
{# unclosed
{% raw %} unclosed
{% set %}
{% set 1 = 2 %}
{% set true = 2 %}
{% set x = %}
{% set x = 1 y %}
{% macro %}{% endmacro %}
{% macro m %}{% endmacro %}
{% macro m(a=1, b) %}{% endmacro %}
{% call x %}{% endcall %}
{% filter %}{% endfilter %}
{% break %}
{% for x in l %}{% endfor %}{% break %}
{% for x in e %}{% else %}{% break %}{% endfor %}
{% for x in l %}{% for y in e recursive %}{% else %}{% break %}{% endfor %}{% endfor %}
{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
{% if t %}{% else %}{% else %}{% endif %}
{{ 1 is 2 }}
{{ x is string is defined }}
{{ x not y }}
{% 1 %}
{% %}
{{ 1 if }}
{{ 'a' 1 }}
{{ '\xZZ' }}
{{ 08 }}
{% include 'x' %}
{% extends 'x' %}
{% import 'x' as y %}
{{ l|batch }}
{{ cycler() }}
{{ dict(1) }}
{{ dict([1]) }}
{{ s|trim(1) }}
{{ s.strip(1) }}
{{ s.startswith(1) }}
{{ s|indent('a', 'b', 'c', 'd') }}
{{ x.y.z }}
{% set x = missing.y %}
{% if missing.y %}{% endif %}
{% for x in missing.y %}{% endfor %}
{{ messages[0].nothing.more }}
{{ messages[0]['nothing']['more'] }}
{{ d|dictsort(by='nothing') }}
{{ f|round(1, 'nothing') }}
{{ 'foo'|truncate(2) }}
""".strip("\n").split("\n")

# Messages that are Python's or Jinja's own business: what counts there is that it fails.
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
    """The text, or the error with its line and whether its message is part of the contract."""
    try:
        return {"text": environment().from_string(source).render(**variables)}
    except Exception as error:  # every kind counts: the template failed
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
