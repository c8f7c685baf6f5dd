#include <algorithm>
#include <initializer_list>

#include "text/jinja/parser.h"

namespace switchyard::jinja {
namespace {

constexpr int kMaxBrackets = 100;  // nesting of brackets and prefix operators
constexpr int kMaxTree = 250;      // depth of the syntax tree, with operators

class NestingGuard {
 public:
  NestingGuard(int& nesting, const TokenStream& stream) : nesting_(nesting) {
    if (nesting_ >= kMaxBrackets) stream.Fail("expressions are nested too deeply");
    ++nesting_;
  }
  ~NestingGuard() { --nesting_; }
  NestingGuard(const NestingGuard&) = delete;
  NestingGuard& operator=(const NestingGuard&) = delete;

 private:
  int& nesting_;
};

int DepthOf(const ExprPtr& expr) { return expr ? expr->depth : 0; }

int DepthOf(const std::vector<ExprPtr>& exprs) {
  int depth = 0;
  for (const ExprPtr& expr : exprs) depth = std::max(depth, expr->depth);
  return depth;
}

int DepthOf(const CallArguments& arguments) {
  int depth = std::max(
      {DepthOf(arguments.positional), DepthOf(arguments.star), DepthOf(arguments.double_star)});
  for (const auto& [name, value] : arguments.named) depth = std::max(depth, value->depth);
  return depth;
}

// `below`: depths of the child nodes.
template <typename Node>
ExprPtr Make(int line, std::initializer_list<int> below, Node node) {
  int depth = 1 + (below.size() ? std::max(below) : 0);
  if (depth > kMaxTree) throw SyntaxError{line, "expression too long or nested too deep"};
  return ExprPtr(new Expr{line, depth, std::move(node)});
}

ExprPtr MakeLiteral(int line, Value value) { return Make(line, {}, Literal{std::move(value)}); }

Value StringValue(std::string text) {
  return Value(std::make_shared<const Text>(std::move(text), true));
}

}  // namespace

ExprPtr ExpressionParser::ParseExpression(bool conditional) {
  NestingGuard guard(nesting_, stream_);
  if (!conditional) return ParseOr();
  int line = stream_.Current().line;
  ExprPtr node = ParseOr();
  while (stream_.SkipName("if")) {
    ExprPtr test = ParseOr();
    ExprPtr otherwise = stream_.SkipName("else") ? ParseExpression() : nullptr;
    std::initializer_list<int> below = {DepthOf(test), DepthOf(node), DepthOf(otherwise)};
    node = Make(line, below, Conditional{std::move(test), std::move(node), std::move(otherwise)});
  }
  return node;
}

ExprPtr ExpressionParser::ParseTuple(bool conditional, bool in_parentheses) {
  int line = stream_.Current().line;
  std::vector<ExprPtr> items;
  bool tuple = false;
  while (true) {
    bool at_end = stream_.Is(TokenKind::kVariableEnd) || stream_.Is(TokenKind::kBlockEnd) ||
                  stream_.IsOperator(")") || (!conditional && stream_.IsName("recursive"));
    if (at_end) break;
    items.push_back(ParseExpression(conditional));
    if (!stream_.SkipOperator(",")) break;
    tuple = true;
  }
  if (!tuple && !items.empty()) return std::move(items[0]);
  if (!tuple && !in_parentheses) {
    stream_.Fail(
        fmt::format("Expected an expression, got '{}'", TokenStream::Describe(stream_.Current())));
  }
  int depth = DepthOf(items);
  return Make(line, {depth}, ListLiteral{std::move(items), true});
}

ExprPtr ExpressionParser::ParseOr() {
  int line = stream_.Current().line;
  ExprPtr left = ParseAnd();
  while (stream_.SkipName("or")) {
    ExprPtr right = ParseAnd();
    std::initializer_list<int> below = {DepthOf(left), DepthOf(right)};
    left = Make(line, below, Logical{false, std::move(left), std::move(right)});
  }
  return left;
}

ExprPtr ExpressionParser::ParseAnd() {
  int line = stream_.Current().line;
  ExprPtr left = ParseNot();
  while (stream_.SkipName("and")) {
    ExprPtr right = ParseNot();
    std::initializer_list<int> below = {DepthOf(left), DepthOf(right)};
    left = Make(line, below, Logical{true, std::move(left), std::move(right)});
  }
  return left;
}

ExprPtr ExpressionParser::ParseNot() {
  if (!stream_.IsName("not")) return ParseComparison();
  NestingGuard guard(nesting_, stream_);
  int line = stream_.Next().line;
  ExprPtr operand = ParseNot();
  int depth = operand->depth;
  return Make(line, {depth}, Unary{UnaryOp::kNot, std::move(operand)});
}

ExprPtr ExpressionParser::ParseComparison() {
  int line = stream_.Current().line;
  ExprPtr first = ParseSum();
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
  int depth = first->depth;
  while (true) {
    CompareOp op;
    if (stream_.SkipOperator("==")) {
      op = CompareOp::kEqual;
    } else if (stream_.SkipOperator("!=")) {
      op = CompareOp::kNotEqual;
    } else if (stream_.SkipOperator("<=")) {
      op = CompareOp::kLessEqual;
    } else if (stream_.SkipOperator(">=")) {
      op = CompareOp::kGreaterEqual;
    } else if (stream_.SkipOperator("<")) {
      op = CompareOp::kLess;
    } else if (stream_.SkipOperator(">")) {
      op = CompareOp::kGreater;
    } else if (stream_.SkipName("in")) {
      op = CompareOp::kIn;
    } else if (stream_.IsName("not") && stream_.Ahead().kind == TokenKind::kName &&
               stream_.Ahead().text == "in") {
      stream_.Next();
      stream_.Next();
      op = CompareOp::kNotIn;
    } else {
      break;
    }
    rest.emplace_back(op, ParseSum());
    depth = std::max(depth, rest.back().second->depth);
  }
  if (rest.empty()) return first;
  return Make(line, {depth}, Comparison{std::move(first), std::move(rest)});
}

ExprPtr ExpressionParser::ParseSum() {
  int line = stream_.Current().line;
  ExprPtr left = ParseConcatenation();
  while (stream_.IsOperator("+") || stream_.IsOperator("-")) {
    BinaryOp op = stream_.Next().text == "+" ? BinaryOp::kAdd : BinaryOp::kSubtract;
    ExprPtr right = ParseConcatenation();
    std::initializer_list<int> below = {DepthOf(left), DepthOf(right)};
    left = Make(line, below, Binary{op, std::move(left), std::move(right)});
  }
  return left;
}

ExprPtr ExpressionParser::ParseConcatenation() {
  int line = stream_.Current().line;
  std::vector<ExprPtr> parts;
  parts.push_back(ParseProduct());
  while (stream_.SkipOperator("~")) parts.push_back(ParseProduct());
  if (parts.size() == 1) return std::move(parts[0]);
  int depth = DepthOf(parts);
  return Make(line, {depth}, Concatenation{std::move(parts)});
}

ExprPtr ExpressionParser::ParseProduct() {
  int line = stream_.Current().line;
  ExprPtr left = ParsePower();
  while (true) {
    BinaryOp op;
    if (stream_.SkipOperator("*")) {
      op = BinaryOp::kMultiply;
    } else if (stream_.SkipOperator("/")) {
      op = BinaryOp::kDivide;
    } else if (stream_.SkipOperator("//")) {
      op = BinaryOp::kFloorDivide;
    } else if (stream_.SkipOperator("%")) {
      op = BinaryOp::kModulo;
    } else {
      return left;
    }
    ExprPtr right = ParsePower();
    std::initializer_list<int> below = {DepthOf(left), DepthOf(right)};
    left = Make(line, below, Binary{op, std::move(left), std::move(right)});
  }
}

// Unlike in Python, ** is left-associative in Jinja, and binds less tightly than a sign.
ExprPtr ExpressionParser::ParsePower() {
  int line = stream_.Current().line;
  ExprPtr left = ParseUnary();
  while (stream_.SkipOperator("**")) {
    ExprPtr right = ParseUnary();
    std::initializer_list<int> below = {DepthOf(left), DepthOf(right)};
    left = Make(line, below, Binary{BinaryOp::kPower, std::move(left), std::move(right)});
  }
  return left;
}

ExprPtr ExpressionParser::ParseUnary(bool with_filters) {
  ExprPtr node;
  if (stream_.IsOperator("-") || stream_.IsOperator("+")) {
    NestingGuard guard(nesting_, stream_);
    const Token& sign = stream_.Next();
    UnaryOp op = sign.text == "-" ? UnaryOp::kNegate : UnaryOp::kUnaryPlus;
    ExprPtr operand = ParseUnary(false);
    int depth = operand->depth;
    node = Make(sign.line, {depth}, Unary{op, std::move(operand)});
  } else {
    node = ParsePrimary();
  }
  node = ParsePostfix(std::move(node));
  return with_filters ? ParseFiltersAndTests(std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::ParsePrimary() {
  const Token& token = stream_.Current();
  switch (token.kind) {
    case TokenKind::kName:
      return ParseName();
    case TokenKind::kString:
      return ParseStringLiteral();
    case TokenKind::kInteger:
      return MakeLiteral(token.line, Value::Integer(stream_.Next().integer));
    case TokenKind::kFloat:
      return MakeLiteral(token.line, Value::Float(stream_.Next().floating));
    default:
      break;
  }
  if (stream_.IsOperator("[")) return ParseListLiteral();
  if (stream_.IsOperator("{")) return ParseDictLiteral();
  if (!stream_.SkipOperator("("))
    stream_.Fail(fmt::format("unexpected '{}'", TokenStream::Describe(token)));
  ExprPtr node = ParseTuple(true, true);
  stream_.ExpectOperator(")");
  return node;
}

ExprPtr ExpressionParser::ParseName() {
  const Token& token = stream_.Next();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return MakeLiteral(token.line, Value::Bool(true));
  if (name == "false" || name == "False") return MakeLiteral(token.line, Value::Bool(false));
  if (name == "none" || name == "None") return MakeLiteral(token.line, Value());
  special_names_.caller |= name == "caller";
  special_names_.varargs |= name == "varargs";
  special_names_.kwargs |= name == "kwargs";
  return Make(token.line, {}, Name{name});
}

// Adjacent literals are concatenated.
ExprPtr ExpressionParser::ParseStringLiteral() {
  int line = stream_.Current().line;
  std::string text;
  while (stream_.Is(TokenKind::kString)) text += stream_.Next().text;
  return MakeLiteral(line, StringValue(std::move(text)));
}

ExprPtr ExpressionParser::ParseListLiteral() {
  int line = stream_.Next().line;
  std::vector<ExprPtr> items;
  while (!stream_.IsOperator("]")) {
    if (!items.empty()) stream_.ExpectOperator(",");
    if (stream_.IsOperator("]")) break;
    items.push_back(ParseExpression());
  }
  stream_.ExpectOperator("]");
  int depth = DepthOf(items);
  return Make(line, {depth}, ListLiteral{std::move(items), false});
}

ExprPtr ExpressionParser::ParseDictLiteral() {
  int line = stream_.Next().line;
  DictLiteral dict;
  int depth = 0;
  while (!stream_.IsOperator("}")) {
    if (!dict.entries.empty()) stream_.ExpectOperator(",");
    if (stream_.IsOperator("}")) break;
    ExprPtr key = ParseExpression();
    stream_.ExpectOperator(":");
    ExprPtr value = ParseExpression();
    depth = std::max({depth, key->depth, value->depth});
    dict.entries.emplace_back(std::move(key), std::move(value));
  }
  stream_.ExpectOperator("}");
  return Make(line, {depth}, std::move(dict));
}

ExprPtr ExpressionParser::ParsePostfix(ExprPtr node) {
  while (true) {
    int line = stream_.Current().line;
    if (stream_.IsOperator(".") || stream_.IsOperator("[")) {
      node = ParseSubscript(std::move(node));
    } else if (stream_.IsOperator("(")) {
      CallArguments arguments = ParseCallArguments();
      std::initializer_list<int> below = {DepthOf(node), DepthOf(arguments)};
      node = Make(line, below, CallExpr{std::move(node), std::move(arguments)});
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::ParseSubscript(ExprPtr object) {
  int line = stream_.Current().line;
  int depth = object->depth;
  if (stream_.SkipOperator(".")) {
    const Token& token = stream_.Next();
    if (token.kind == TokenKind::kName)
      return Make(line, {depth}, Attribute{std::move(object), token.text});
    if (token.kind != TokenKind::kInteger) stream_.Fail("expected name or number", token.line);
    ExprPtr key = MakeLiteral(line, Value::Integer(token.integer));
    return Make(line, {depth}, Subscript{std::move(object), std::move(key)});
  }
  stream_.ExpectOperator("[");
  if (stream_.IsOperator("]")) stream_.Fail("Expected an expression, got ']'");
  ExprPtr first = stream_.IsOperator(":") ? nullptr : ParseExpression();
  if (!stream_.SkipOperator(":")) {
    if (stream_.IsOperator(","))
      stream_.Fail("subscripts of several expressions are not supported");
    stream_.ExpectOperator("]");
    std::initializer_list<int> below = {depth, first->depth};
    return Make(line, below, Subscript{std::move(object), std::move(first)});
  }
  auto at_end = [this] { return stream_.IsOperator("]") || stream_.IsOperator(":"); };
  ExprPtr stop = at_end() ? nullptr : ParseExpression();
  ExprPtr step = stream_.SkipOperator(":") && !at_end() ? ParseExpression() : nullptr;
  stream_.ExpectOperator("]");
  std::initializer_list<int> below = {depth, DepthOf(first), DepthOf(stop), DepthOf(step)};
  return Make(line, below,
              SliceExpr{std::move(object), std::move(first), std::move(stop), std::move(step)});
}

ExprPtr ExpressionParser::ParseFiltersAndTests(ExprPtr node) {
  while (true) {
    int line = stream_.Current().line;
    if (stream_.SkipOperator("|")) {
      node = ParseFilter(std::move(node));
    } else if (stream_.SkipName("is")) {
      node = ParseTest(std::move(node));
    } else if (stream_.IsOperator("(")) {
      CallArguments arguments = ParseCallArguments();
      std::initializer_list<int> below = {DepthOf(node), DepthOf(arguments)};
      node = Make(line, below, CallExpr{std::move(node), std::move(arguments)});
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::ParseFilters(ExprPtr input) {
  while (stream_.SkipOperator("|")) input = ParseFilter(std::move(input));
  return input;
}

ExprPtr ExpressionParser::ParseFilterBlock() { return ParseFilters(ParseFilter(nullptr)); }

ExprPtr ExpressionParser::ParseFilter(ExprPtr input) {
  const Token& token = stream_.Expect(TokenKind::kName);
  std::string name = token.text;
  while (stream_.SkipOperator(".")) name += "." + stream_.Expect(TokenKind::kName).text;
  CallArguments arguments = stream_.IsOperator("(") ? ParseCallArguments() : CallArguments{};
  std::initializer_list<int> below = {DepthOf(input), DepthOf(arguments)};
  return Make(token.line, below,
              FilterExpr{std::move(input), std::move(name), std::move(arguments)});
}

ExprPtr ExpressionParser::ParseTest(ExprPtr input) {
  int line = stream_.Current().line;
  bool negated = stream_.SkipName("not");
  std::string name = stream_.Expect(TokenKind::kName).text;
  CallArguments arguments;
  bool keyword = stream_.IsName("else") || stream_.IsName("or") || stream_.IsName("and");
  bool operand = stream_.Is(TokenKind::kName) || stream_.Is(TokenKind::kString) ||
                 stream_.Is(TokenKind::kInteger) || stream_.Is(TokenKind::kFloat) ||
                 stream_.IsOperator("[") || stream_.IsOperator("{");
  if (stream_.IsOperator("(")) {
    arguments = ParseCallArguments();
  } else if (operand && !keyword) {
    if (stream_.IsName("is")) stream_.Fail("You cannot chain multiple tests with is");
    arguments.positional.push_back(ParsePostfix(ParsePrimary()));
  }
  std::initializer_list<int> below = {DepthOf(input), DepthOf(arguments)};
  ExprPtr node =
      Make(line, below, TestExpr{std::move(input), std::move(name), std::move(arguments)});
  int depth = node->depth;
  return negated ? Make(line, {depth}, Unary{UnaryOp::kNot, std::move(node)}) : std::move(node);
}

CallArguments ExpressionParser::ParseCallArguments() {
  int line = stream_.Current().line;
  stream_.ExpectOperator("(");
  CallArguments arguments;
  auto require = [&](bool valid) {
    if (!valid) stream_.Fail("invalid syntax for function call expression", line);
  };
  bool first = true;
  while (!stream_.IsOperator(")")) {
    if (!first) stream_.ExpectOperator(",");
    if (!first && stream_.IsOperator(")")) break;
    first = false;
    const Token& token = stream_.Current();
    if (stream_.SkipOperator("*")) {
      require(!arguments.star && !arguments.double_star);
      arguments.star = ParseExpression();
    } else if (stream_.SkipOperator("**")) {
      require(!arguments.double_star);
      arguments.double_star = ParseExpression();
    } else if (token.kind == TokenKind::kName && stream_.Ahead().kind == TokenKind::kOperator &&
               stream_.Ahead().text == "=") {
      require(!arguments.double_star);
      stream_.Next();
      stream_.Next();
      arguments.named.emplace_back(token.text, ParseExpression());
    } else {
      require(!arguments.star && !arguments.double_star && arguments.named.empty());
      arguments.positional.push_back(ParseExpression());
    }
  }
  stream_.ExpectOperator(")");
  return arguments;
}

}  // namespace switchyard::jinja
