#include "text/jinja/parser.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "text/jinja/lexer.h"

namespace switchyard::jinja {
namespace {

constexpr int kMaxStatementNesting = 60;

using StatementPtr = std::unique_ptr<const Statement>;
using EndTags = std::vector<std::string_view>;

std::string Quoted(const EndTags& tags) {
  std::string out;
  for (std::string_view tag : tags) out += fmt::format("{}'{}'", out.empty() ? "" : " or ", tag);
  return out;
}

class Parser {
 public:
  explicit Parser(std::string_view source) : stream_(Tokenize(source)), expressions_(stream_) {}

  std::shared_ptr<const TemplateNode> ParseAll() {
    auto root = std::make_shared<TemplateNode>();
    root->body = ParseUntil({});
    return root;
  }

 private:
  // A block that encloses the current tag; needed for error messages and for the nesting limit.
  struct OpenBlock {
    std::string_view tag;
    EndTags ends;
  };

  // Parses a statement's body, from the end of the statement's tag to a tag in `ends`. Afterwards
  // the current token is the name of the end tag.
  Body ParseBody(std::string_view tag, EndTags ends) {
    stream_.SkipOperator(":");
    ExpectBlockEnd();
    if (open_.size() >= kMaxStatementNesting) stream_.Fail("statements are nested too deeply");
    open_.push_back({tag, ends});
    Body body = ParseUntil(ends);
    if (stream_.Is(TokenKind::kEnd)) FailLookingFor("Unexpected end of template.");
    open_.pop_back();
    return body;
  }

  // Parses a body with only one possible end tag, and consumes it.
  Body ParseWholeBody(std::string_view tag, std::string_view end) {
    Body body = ParseBody(tag, {end});
    stream_.Next();
    return body;
  }

  // Stops at the end of the template, or after `{%` at a name in `ends`.
  Body ParseUntil(const EndTags& ends) {
    Body body;
    while (!stream_.Is(TokenKind::kEnd)) {
      const Token& token = stream_.Next();
      if (token.kind == TokenKind::kData) {
        Value text(std::make_shared<const Text>(token.text, true));
        body.push_back(MakeStatement(token.line, Data{std::move(text)}));
      } else if (token.kind == TokenKind::kVariableBegin) {
        body.push_back(MakeStatement(token.line, Output{expressions_.ParseTuple()}));
        stream_.Expect(TokenKind::kVariableEnd);
      } else {
        bool ended = std::any_of(ends.begin(), ends.end(),
                                 [this](std::string_view end) { return stream_.IsName(end); });
        if (ended) return body;
        body.push_back(ParseStatement());
        ExpectBlockEnd();
      }
    }
    return body;
  }

  void ExpectBlockEnd() { stream_.Expect(TokenKind::kBlockEnd); }

  template <typename Node>
  static StatementPtr MakeStatement(int line, Node node) {
    return StatementPtr(new Statement{line, std::move(node)});
  }

  StatementPtr ParseStatement() {
    const Token& tag = stream_.Current();
    if (tag.kind != TokenKind::kName) stream_.Fail("tag name expected");
    if (tag.text == "if") return ParseIf();
    if (tag.text == "for") return ParseFor();
    if (tag.text == "set") return ParseSet();
    if (tag.text == "macro") return ParseMacro();
    if (tag.text == "call") return ParseCall();
    if (tag.text == "filter") return ParseFilter();
    if (tag.text == "with") return ParseWith();
    if (tag.text == "generation") {
      stream_.Next();
      return MakeStatement(tag.line, Scoped{ParseWholeBody("generation", "endgeneration")});
    }
    if (tag.text == "break" || tag.text == "continue") return ParseLoopControl();
    static constexpr std::array<std::string_view, 6> kOutside = {"include", "import", "from",
                                                                 "extends", "block",  "autoescape"};
    if (std::find(kOutside.begin(), kOutside.end(), tag.text) != kOutside.end()) {
      stream_.Fail(
          fmt::format("'{}' is not supported: a chat template cannot use other files", tag.text));
    }
    FailLookingFor(fmt::format("Encountered unknown tag '{}'.", tag.text));
  }

  [[noreturn]] void FailLookingFor(std::string message) const {
    if (!open_.empty()) {
      message += fmt::format(
          " Jinja was looking for the following tags: {}. The innermost block that needs to be "
          "closed is '{}'.",
          Quoted(open_.back().ends), open_.back().tag);
    }
    stream_.Fail(std::move(message));
  }

  StatementPtr ParseIf() {
    int line = stream_.Next().line;
    If node;
    while (true) {
      ExprPtr test = expressions_.ParseTuple(false);
      Body body = ParseBody("if", {"elif", "else", "endif"});
      node.branches.push_back({std::move(test), std::move(body)});
      const Token& end = stream_.Next();
      if (end.text == "elif") continue;
      if (end.text == "else") node.otherwise = ParseWholeBody("if", "endif");
      return MakeStatement(line, std::move(node));
    }
  }

  StatementPtr ParseFor() {
    int line = stream_.Next().line;
    For node;
    node.target = ParseTargets(false);
    stream_.ExpectName("in");
    node.iterable = expressions_.ParseTuple(false);
    if (stream_.SkipName("if")) node.filter = expressions_.ParseExpression();
    node.recursive = stream_.SkipName("recursive");
    ++loops_;
    node.body = ParseBody("for", {"endfor", "else"});
    --loops_;
    if (stream_.Next().text == "else") {
      // Jinja2 compiles a recursive loop to a separate function: its `else` is not inside any loop.
      int loops = node.recursive ? std::exchange(loops_, 0) : loops_;
      node.otherwise = ParseWholeBody("for", "endfor");
      loops_ = loops;
    }
    return MakeStatement(line, std::move(node));
  }

  StatementPtr ParseLoopControl() {
    const Token& tag = stream_.Next();
    if (loops_ == 0) stream_.Fail(fmt::format("'{}' outside loop", tag.text), tag.line);
    if (tag.text == "break") return MakeStatement(tag.line, Break{});
    return MakeStatement(tag.line, Continue{});
  }

  StatementPtr ParseSet() {
    int line = stream_.Next().line;
    Target target = ParseTargets(true);
    if (stream_.SkipOperator("=")) {
      return MakeStatement(line, Set{std::move(target), expressions_.ParseTuple()});
    }
    ExprPtr filter = expressions_.ParseFilters(nullptr);
    return MakeStatement(
        line, SetBlock{std::move(target), std::move(filter), ParseWholeBody("set", "endset")});
  }

  // `a`, `a, b`, `(a, b)`, and with `attributes` also `a.b`; ends at `in`, `=` or a tag's end.
  Target ParseTargets(bool attributes) {
    Target out;
    while (true) {
      bool at_end = stream_.IsName("in") || stream_.Is(TokenKind::kBlockEnd) ||
                    stream_.IsOperator(")") || stream_.IsOperator("=");
      if (at_end && (out.tuple || !out.items.empty())) break;
      out.items.push_back(ParseTarget(attributes));
      if (!stream_.SkipOperator(",")) break;
      out.tuple = true;
    }
    if (out.tuple) return out;
    Target only = std::move(out.items[0]);
    return only;
  }

  Target ParseTarget(bool attributes) {
    if (stream_.SkipOperator("(")) {
      if (++target_nesting_ > 20) stream_.Fail("targets are nested too deeply");
      Target target = ParseTargets(attributes);
      --target_nesting_;
      stream_.ExpectOperator(")");
      return target;
    }
    const Token& token = stream_.Next();
    if (token.kind == TokenKind::kBlockEnd) {
      stream_.Fail(fmt::format("Expected an expression, got '{}'", TokenStream::Describe(token)),
                   token.line);
    }
    if (token.kind != TokenKind::kName) stream_.Fail("can't assign to this expression", token.line);
    static constexpr std::array<std::string_view, 6> kConstants = {"true", "false", "none",
                                                                   "True", "False", "None"};
    if (std::find(kConstants.begin(), kConstants.end(), token.text) != kConstants.end()) {
      stream_.Fail("can't assign to 'const'", token.line);
    }
    Target target;
    target.name = token.text;
    if (attributes && stream_.SkipOperator("."))
      target.attribute = stream_.Expect(TokenKind::kName).text;
    return target;
  }

  StatementPtr ParseMacro() {
    int line = stream_.Next().line;
    auto macro = std::make_unique<MacroDefinition>();
    macro->name = stream_.Expect(TokenKind::kName).text;
    ParseSignature(*macro);
    ParseMacroBody(*macro, "macro", "endmacro");
    std::unique_ptr<const MacroDefinition> node = std::move(macro);
    return MakeStatement(line, std::move(node));
  }

  StatementPtr ParseCall() {
    int line = stream_.Next().line;
    auto caller = std::make_unique<MacroDefinition>();
    caller->name = "caller";
    if (stream_.IsOperator("(")) ParseSignature(*caller);
    ExprPtr call = expressions_.ParseExpression();
    if (!std::holds_alternative<CallExpr>(call->node)) stream_.Fail("expected call", line);
    ParseMacroBody(*caller, "call", "endcall");
    return MakeStatement(line, CallBlock{std::move(caller), std::move(call)});
  }

  void ParseSignature(MacroDefinition& macro) {
    stream_.ExpectOperator("(");
    while (!stream_.IsOperator(")")) {
      if (!macro.parameters.empty()) stream_.ExpectOperator(",");
      MacroDefinition::Parameter parameter;
      parameter.name = ParseTarget(false).name;
      if (stream_.SkipOperator("=")) {
        parameter.otherwise = expressions_.ParseExpression();
      } else if (!macro.parameters.empty() && macro.parameters.back().otherwise) {
        stream_.Fail("non-default argument follows default argument");
      }
      macro.parameters.push_back(std::move(parameter));
    }
    stream_.ExpectOperator(")");
  }

  // Also records which of caller, varargs and kwargs the body reads. An enclosing macro then counts
  // as reading the same names.
  void ParseMacroBody(MacroDefinition& macro, std::string_view tag, std::string_view end) {
    int loops = std::exchange(loops_, 0);
    auto outer = std::exchange(expressions_.special_names(), {});
    macro.body = ParseWholeBody(tag, end);
    auto& names = expressions_.special_names();
    auto is_parameter = [&macro](std::string_view name) {
      return std::any_of(macro.parameters.begin(), macro.parameters.end(),
                         [name](const auto& parameter) { return parameter.name == name; });
    };
    macro.uses_caller = names.caller && !is_parameter("caller");
    macro.uses_varargs = names.varargs && !is_parameter("varargs");
    macro.uses_kwargs = names.kwargs && !is_parameter("kwargs");
    names.caller |= outer.caller;
    names.varargs |= outer.varargs;
    names.kwargs |= outer.kwargs;
    loops_ = loops;
  }

  StatementPtr ParseFilter() {
    int line = stream_.Next().line;
    ExprPtr filter = expressions_.ParseFilterBlock();
    return MakeStatement(line,
                         FilterBlock{std::move(filter), ParseWholeBody("filter", "endfilter")});
  }

  StatementPtr ParseWith() {
    int line = stream_.Next().line;
    With node;
    while (!stream_.Is(TokenKind::kBlockEnd)) {
      if (!node.variables.empty()) stream_.ExpectOperator(",");
      Target target = ParseTarget(false);
      stream_.ExpectOperator("=");
      node.variables.emplace_back(std::move(target), expressions_.ParseExpression());
    }
    node.body = ParseWholeBody("with", "endwith");
    return MakeStatement(line, std::move(node));
  }

  TokenStream stream_;
  ExpressionParser expressions_;
  std::vector<OpenBlock> open_;
  int loops_ = 0;  // number of loops around the current tag, within the current macro
  int target_nesting_ = 0;
};

}  // namespace

std::shared_ptr<const TemplateNode> ParseTemplate(std::string_view source) {
  return Parser(source).ParseAll();
}

}  // namespace switchyard::jinja
