#!/usr/bin/env python3
"""Writes the Parquet files beside this script and their rows as JSON lines, with pyarrow 21.0.0 (pip install pyarrow==21.0.0).

  texts_*.parquet    the rows of texts.jsonl with several codecs, page versions and encodings; 4 row groups, small pages
  chats.parquet      chats.jsonl: lists of structs with calls, tools and template variables
  rollouts.parquet   rollouts.jsonl: lists of token ids, log-probabilities
  types.parquet      types.jsonl: numbers of all widths, floats, bools, nulls, nested lists, with their encodings
  empty.parquet      no rows
  brotli.parquet, lz4.parquet, split.parquet, map.parquet, decimal.parquet, other.parquet: refused
  text_with_map.parquet  one text, and the columns of chats as maps, which are not read

A null is absent from the JSON lines, also in structs, because Parquet has no absent fields.
"""
import datetime
import decimal
import json
import pathlib
import random

import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).resolve().parent
SMALL = {"write_batch_size": 4, "data_page_size": 100, "row_group_size": 17, "write_statistics": False,
         "store_schema": False}


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def write_lines(name, rows):
    lines = [json.dumps(without_nulls(row), ensure_ascii=False) for row in rows]
    (HERE / name).write_text("\n".join(lines) + "\n")


def write(name, table, **options):
    pq.write_table(table, HERE / name, **{**SMALL, **options})


def texts():
    random.seed(7)
    words = "track yard wagon signal Weiche Gleis 線路 🚂 points buffer".split()
    rows = []
    for i in range(60):
        text = " ".join(random.choice(words) for _ in range(i % 9))
        rows.append(None if i % 13 == 5 else "the same text" if i % 4 == 1 else text)
    rows[20] = "".join(random.choice("0123456789abcdefghijklmnopqrstuvwxyz") for _ in range(700))
    rows[21] = "wagon after wagon " * 30
    rows[22:26] = [f"the yard has track {i}" for i in range(4)]
    return rows


def write_texts():
    rows = texts()
    write_lines("texts.jsonl", [{"text": row} for row in rows])
    day = datetime.date(2025, 1, 2)
    table = pa.table({"id": pa.array(range(len(rows)), pa.int32()), "text": pa.array(rows, pa.string()),
                      "day": pa.array([day] * len(rows), pa.date32())})
    plain = {"use_dictionary": False, "compression": "none"}
    write("texts_plain.parquet", table, **plain)
    write("texts_dictionary.parquet", table, compression="snappy")
    write("texts_fallback.parquet", table, compression="gzip", dictionary_pagesize_limit=64)
    write("texts_snappy_v2.parquet", table, compression="snappy", data_page_version="2.0")
    write("texts_gzip.parquet", table, compression="gzip", use_dictionary=False, data_page_size=4000, row_group_size=60)
    write("texts_lengths.parquet", table, **plain, column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY"})
    write("texts_prefixes.parquet", table, use_dictionary=False, compression="gzip", data_page_version="2.0",
          column_encoding={"text": "DELTA_BYTE_ARRAY"})
    write("texts_zstd.parquet", table, compression="zstd", use_dictionary=False, data_page_size=4000, row_group_size=60)
    write("texts_zstd_fast.parquet", table, compression="zstd", compression_level=-5, data_page_version="2.0")
    required = pa.table({"text": pa.array([row or "" for row in rows], pa.string())},
                        schema=pa.schema([pa.field("text", pa.string(), nullable=False)]))
    write("texts_required.parquet", required, compression="none")
    for codec in ("lz4", "brotli"):
        write(f"{codec}.parquet", table.slice(0, 4), compression=codec)


def write_chats():
    rows = []
    for i in range(24):
        messages = [{"role": "user", "content": f"which track has wagon {i}?"},
                    {"role": "assistant", "content": f"wagon {i} is on track {i % 7}"}]
        row = {"messages": messages}
        if i % 5 == 2:
            messages[1] = {"role": "assistant", "content": None, "tool_calls": [
                {"function": {"name": "find", "arguments": {"wagon": i, "yard": None}}}]}
            messages += [{"role": "tool", "content": str(i % 7)}, {"role": "assistant", "content": f"on {i % 7}"}]
            row["tools"] = [{"type": "function", "function": {"name": "find", "description": "finds a wagon"}}]
        if i % 4 == 3:
            row["chat_template_kwargs"] = {"loud": i % 8 == 3, "level": i}
        rows.append(row)
    function = pa.struct([("name", pa.string()),
                          ("arguments", pa.struct([("wagon", pa.int64()), ("yard", pa.string())]))])
    message = pa.struct([("role", pa.string()), ("content", pa.string()),
                         ("tool_calls", pa.list_(pa.struct([("function", function)])))])
    tool = pa.struct([("type", pa.string()),
                      ("function", pa.struct([("name", pa.string()), ("description", pa.string())]))])
    schema = pa.schema([("messages", pa.list_(message)), ("tools", pa.list_(tool)),
                        ("chat_template_kwargs", pa.struct([("loud", pa.bool_()), ("level", pa.int8())]))])
    write_lines("chats.jsonl", rows)
    write("chats.parquet", pa.Table.from_pylist(rows, schema=schema), compression="snappy", row_group_size=10)


def write_rollouts():
    rows = []
    for i in range(12):
        ids = [(i * 5 + t * 3) % 280 for t in range(4 + i % 9)]
        # As a server sends them. The elements of a list in Parquet have one type, so ids become floats.
        logprobs = [[None if t % 5 == 4 else -t / 8, token, None] for t, token in enumerate(ids)]
        meta = {"prompt_token_ids": [i, i + 1, 7], "output_token_logprobs": logprobs, "weight_version": None}
        rows.append({"output_ids": ids, "meta_info": meta if i % 4 != 3 else {**meta, "output_token_logprobs": None}})
    write_lines("rollouts.jsonl", rows)
    meta = pa.struct([("prompt_token_ids", pa.list_(pa.int64())), ("weight_version", pa.null()),
                      ("output_token_logprobs", pa.list_(pa.list_(pa.float64())))])
    schema = pa.schema([("output_ids", pa.list_(pa.int32())), ("meta_info", meta)])
    write("rollouts.parquet", pa.Table.from_pylist(rows, schema=schema), compression="gzip", use_dictionary=False,
          column_encoding={"output_ids.list.element": "DELTA_BINARY_PACKED"}, row_group_size=5)


def write_types():
    random.seed(5)
    rows = []
    for i in range(40):
        big = random.randrange(-2**63, 2**63)
        rows.append({"i8": i - 20, "i16": -i * 300, "u32": 2**32 - 1 - i, "u64": 2**64 - 1 - i, "i64": big,
                     "delta": 2**31 - 1 if i % 2 else -2**31, "wide": big, "real": i / 8, "double": -i / 3,
                     "flag": i % 3 == 0, "flags": i // 11 % 2 == 0,
                     "lists": [[j * 10 + k for k in range(j)] if j != 2 else None for j in range(i % 5)],
                     "words": [None if k == i % 4 else "w" * k for k in range(i % 6)],
                     "none": None, "nothing": None, "nothings": [None] * (i % 3)})
        if i % 7 == 3:
            rows[-1].update(lists=None, words=[], flag=None, delta=None, wide=None)
    schema = pa.schema([("i8", pa.int8()), ("i16", pa.int16()), ("u32", pa.uint32()), ("u64", pa.uint64()),
                        ("i64", pa.int64()), ("delta", pa.int32()), ("wide", pa.int64()), ("real", pa.float32()),
                        ("double", pa.float64()), ("flag", pa.bool_()), ("flags", pa.bool_()),
                        ("lists", pa.list_(pa.list_(pa.int32()))), ("words", pa.list_(pa.string())),
                        ("none", pa.string()), ("nothing", pa.null()), ("nothings", pa.list_(pa.null()))])
    write_lines("types.jsonl", rows)
    table = pa.Table.from_pylist(rows, schema=schema)
    write("types.parquet", table, compression="snappy", data_page_version="2.0", use_dictionary=["i64", "i16"],
          column_encoding={"delta": "DELTA_BINARY_PACKED", "wide": "DELTA_BINARY_PACKED", "flags": "RLE"})


def write_refused():
    write("empty.parquet", pa.table({"text": pa.array([], pa.string())}))
    write("other.parquet", pa.table({"prose": ["a"], "id": [1]}))
    # Maps of columns that are not read are no reason to refuse a file.
    a_map = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))
    chat = pa.array([[{"role": "user", "content": "a"}]], pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))
    write("map.parquet", pa.table({"messages": chat, "tools": a_map}))
    write("text_with_map.parquet", pa.table({"text": ["a"], "tools": a_map, "chat_template_kwargs": a_map}))
    write("decimal.parquet", pa.table({"text": pa.array([decimal.Decimal("1.5")], pa.decimal128(9, 2))}))
    write("split.parquet", pa.table({"text": ["a"], "tools": pa.array([1.5], pa.float32())}), use_dictionary=False,
          column_encoding={"tools": "BYTE_STREAM_SPLIT"}, compression="none")


if __name__ == "__main__":
    write_texts()
    write_chats()
    write_rollouts()
    write_types()
    write_refused()
