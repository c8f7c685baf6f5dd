#include "text/parquet/rows.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/error.h"
#include "text/tokenizer/unicode.h"

namespace switchyard::parquet {
namespace {

using Json = nlohmann::ordered_json;

// Bounds of what a damaged footer can allocate: a path has its names, and a leaf has its path.
constexpr size_t kMaxColumnName = 1024, kMaxColumns = 4096;

constexpr int64_t kLogicalInteger = 10, kLogicalUnknown = 11;  // logical types

// Annotations of leaves that are texts, plain numbers or nulls. Others, such as dates and decimals,
// are refused, because their physical values are not what the column means.
bool IsPlain(const SchemaNode& node) {
  constexpr int64_t kConverted[] = {-1, 0, 4, 11, 12, 13, 14, 15, 16, 17, 18, 19};
  // none, STRING, ENUM, INTEGER, UNKNOWN, JSON
  constexpr int64_t kLogical[] = {0, 1, 4, kLogicalInteger, kLogicalUnknown, 12};
  return std::ranges::count(kConverted, node.converted_type) > 0 &&
         std::ranges::count(kLogical, node.logical_type) > 0;
}

// Writers may omit the older annotation.
bool IsUnsigned(const SchemaNode& node) {
  if (node.logical_type == kLogicalInteger) return !node.is_signed;
  return node.converted_type >= 11 && node.converted_type <= 14;
}

// Whether the repeated child of a list is the element itself, as older writers have it, and not a
// group around the element (LogicalTypes.md, "Lists").
bool IsElement(const SchemaNode& list, const SchemaNode& repeated) {
  return repeated.num_children != 1 || repeated.name == "array" ||
         repeated.name == list.name + "_tuple";
}

}  // namespace

RowReader::RowReader(std::span<const uint8_t> file, std::string name, Metadata metadata,
                     std::span<const std::string_view> wanted, RowLimits limits)
    : file_(file),
      name_(std::move(name)),
      metadata_(std::move(metadata)),
      limits_(limits),
      budget_(limits.page_memory) {
  std::set<std::string_view> names;
  for (size_t i = 1; i < metadata_.schema.size();) {
    const SchemaNode& node = metadata_.schema[i];
    if (std::ranges::count(wanted, std::string_view(node.name)) > 0) {
      if (!names.insert(node.name).second)
        throw Invalid("{}: there are two columns {}", name_, QuotedColumn(node.name));
      i = AddNode(i, {}, false);
      continue;
    }
    for (int64_t open = 1; open > 0; ++i) open += metadata_.schema[i].num_children - 1;
  }
}

// Adds the leaves below node `index`, whose path so far is `path`. Returns the index after them.
// The depth of the schema is limited, so recursion is too.
size_t RowReader::AddNode(size_t index, Path path, bool is_element) {
  const SchemaNode& node = metadata_.schema[index];
  Leaf& leaf = path.leaf;
  if (!leaf.name.empty()) leaf.name += '.';
  leaf.name += node.name;
  if (node.name.empty() || node.name.size() > kMaxColumnName || !IsValidUtf8(node.name)) {
    throw Invalid("{}: the name of a column is empty, longer than {} bytes or not UTF-8", name_,
                  kMaxColumnName);
  }
  if (node.is_map())
    throw Invalid("{}: column {} is a map, which is not supported", name_, QuotedColumn(leaf.name));
  Node step{.key = is_element ? std::string() : node.name,
            .optional = node.repetition == Repetition::kOptional,
            .repeated = node.repetition == Repetition::kRepeated};
  if (step.optional || step.repeated) ++leaf.max_definition;
  if (step.repeated) ++leaf.max_repetition;
  step.definition = leaf.max_definition;
  step.repetition = leaf.max_repetition;
  step.is_object = node.num_children > 0 && !node.is_list();
  path.nodes.push_back(step);
  if (node.num_children == 0) {
    AddLeaf(node, std::move(path));
    return index + 1;
  }
  if (step.is_object) {
    std::set<std::string_view> names;
    size_t next = index + 1;
    for (int64_t i = 0; i < node.num_children; ++i) {
      const std::string& child = metadata_.schema[next].name;
      if (!names.insert(child).second)
        throw Invalid("{}: there are two columns {}", name_, QuotedColumn(leaf.name + '.' + child));
      next = AddNode(next, path, false);
    }
    return next;
  }
  const SchemaNode& child = metadata_.schema[index + 1];
  if (node.num_children != 1 || child.repetition != Repetition::kRepeated || step.repeated)
    throw Invalid("{}: column {} is a list of an unknown form", name_, QuotedColumn(leaf.name));
  if (IsElement(node, child)) return AddNode(index + 1, std::move(path), true);
  // A group around the element, which has no meaning of its own.
  leaf.name += '.';
  leaf.name += child.name;
  path.nodes.push_back(
      {.repeated = true, .definition = ++leaf.max_definition, .repetition = ++leaf.max_repetition});
  return AddNode(index + 2, std::move(path), true);
}

void RowReader::AddLeaf(const SchemaNode& node, Path path) {
  Leaf& leaf = path.leaf;
  leaf.type = *node.type;
  leaf.column = static_cast<size_t>(node.column);
  if (!IsPlain(node) || leaf.type == PhysicalType::kInt96 || leaf.type > PhysicalType::kByteArray) {
    throw Invalid(
        "{}: column {} has neither texts, integers, floats nor bools: values of type {} with the "
        "annotation {} are not supported",
        name_, QuotedColumn(leaf.name), NameOf(leaf.type),
        node.logical_type != 0 ? NameOfLogical(node.logical_type)
                               : NameOfConverted(node.converted_type));
  }
  if (read_.size() == kMaxColumns)
    throw Invalid("{}: has more than {} columns of documents", name_, kMaxColumns);
  Column column{.path = std::move(path),
                .is_unsigned = IsUnsigned(node),
                .is_null = node.logical_type == kLogicalUnknown};
  column.indexes.resize(column.path.leaf.max_repetition + 1);
  read_.push_back(std::move(column));
}

bool RowReader::BeginRowGroup() {
  for (Column& column : read_) {
    if (column.next) throw Invalid("{}: has more rows than its row group", column.reader->where());
  }
  if (next_group_ == metadata_.row_groups.size()) return false;
  const size_t index = next_group_++;
  const RowGroup& group = metadata_.row_groups[index];
  row_ = 0;
  num_rows_ = group.num_rows;
  for (Column& column : read_) {
    const Leaf& leaf = column.path.leaf;
    column.reader = std::make_unique<ColumnReader>(file_, name_, index, group.columns[leaf.column],
                                                   leaf, &budget_);
    column.next = column.reader->Next();
    if (column.next && column.next->repetition != 0)
      throw Invalid("{}: begins within a row", column.reader->where());
  }
  return true;
}

std::optional<RowReader::Row> RowReader::Next() {
  if (read_.empty()) return std::nullopt;
  while (row_ == num_rows_) {
    if (!BeginRowGroup()) return std::nullopt;
  }
  Row row{.row_group = static_cast<int64_t>(next_group_) - 1, .row = row_++};
  row.values = Json::object();
  row_entries_ = 0;
  row_text_ = 0;
  for (Column& column : read_) ReadColumn(&column, &row.values);
  return row;
}

void RowReader::ReadColumn(Column* column, Json* row) {
  if (!column->next) {
    throw Invalid("{}: has {} rows, but its row group has {}", column->reader->where(), row_ - 1,
                  num_rows_);
  }
  do {
    Insert(*column->next, column, row);
    column->next = column->reader->Next();
    if (++row_entries_ > kMaxPageValues) {
      throw Invalid("{}: row {} has more than {} values", column->reader->where(), row_ - 1,
                    kMaxPageValues);
    }
  } while (column->next && column->next->repetition > 0);
}

void RowReader::Insert(const Entry& entry, Column* column, Json* row) {
  Json* at = row;
  for (const Node& node : column->path.nodes) {
    // A null field is absent, and a null element stays null.
    if (node.optional && entry.definition < node.definition) return;
    if (!node.key.empty()) at = &(*at)[node.key];
    if (node.repeated) {
      if (at->is_null()) *at = Json::array();
      if (entry.definition < node.definition) return;  // an empty list
      size_t& index = column->indexes[node.repetition];
      if (entry.repetition < node.repetition) index = 0;
      if (entry.repetition == node.repetition) ++index;
      if (index > at->size()) {
        throw Invalid("{}: row {}: the columns of a list have different lengths",
                      column->reader->where(), row_ - 1);
      }
      if (index == at->size()) at->push_back(nullptr);
      at = &(*at)[index];
    }
    if (node.is_object && at->is_null()) *at = Json::object();
  }
  *at = JsonOf(entry.value, *column);
}

Json RowReader::JsonOf(const Value& value, const Column& column) {
  if (column.is_null) {
    throw Invalid("{}: row {}: has a value, but its type has only nulls", column.reader->where(),
                  row_ - 1);
  }
  if (const auto* text = std::get_if<std::string_view>(&value)) {
    if (!IsValidUtf8(*text)) {
      throw Invalid("{}: row {}: a text is not UTF-8", column.reader->where(), row_ - 1);
    }
    // Few bytes of a dictionary, or of prefixes, can stand for many texts.
    row_text_ += text->size();
    if (row_text_ > limits_.text) {
      throw Invalid("{}: row {} has more than {} bytes of text", column.reader->where(), row_ - 1,
                    limits_.text);
    }
    return std::string(*text);
  }
  if (const auto* number = std::get_if<int64_t>(&value)) {
    if (!column.is_unsigned) return *number;
    if (column.path.leaf.type == PhysicalType::kInt32) return static_cast<uint32_t>(*number);
    return static_cast<uint64_t>(*number);
  }
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return std::get<bool>(value);
}

}  // namespace switchyard::parquet
