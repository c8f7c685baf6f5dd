#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/tokenizer/text_pattern.h"

namespace switchyard {
namespace {

// Long names of General_Category and POSIX names, which PCRE2 lacks.
constexpr std::array<std::pair<std::string_view, std::string_view>, 42> kPropertyNames = {{
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"casedletter", "L&"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"combiningmark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"privateuse", "Co"},
    {"unassigned", "Cn"},
    {"alpha", "Alphabetic"},
    {"space", "White_Space"},
    {"digit", "Nd"},
    {"lc", "L&"},
}};

// Names of properties that are not scripts; every other name longer than a category is a script.
constexpr std::array<std::string_view, 14> kBinaryProperties = {"any",
                                                                "ascii",
                                                                "alphabetic",
                                                                "whitespace",
                                                                "uppercase",
                                                                "lowercase",
                                                                "emoji",
                                                                "math",
                                                                "dash",
                                                                "ideographic",
                                                                "emojipresentation",
                                                                "extendedpictographic",
                                                                "unifiedideograph",
                                                                "hexdigit"};

}  // namespace

std::string Pcre2PropertyName(std::string_view name) {
  for (const auto& [from, to] : kPropertyNames) {
    if (name == from) return std::string(to);
  }
  std::string out(name);
  if (out.size() <= 2) {  // a category: L, Lu
    if (!out.empty()) out[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(out[0])));
    return out;
  }
  const bool binary = std::find(kBinaryProperties.begin(), kBinaryProperties.end(), name) !=
                      kBinaryProperties.end();
  const bool qualified = name.find_first_of(":=") != std::string_view::npos;
  return binary || qualified ? out : "sc:" + out;
}

namespace {

constexpr std::string_view kWordItems = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHexItems = "0-9A-Fa-f";
constexpr std::string_view kAnyCharacter = "(?s:.)";
constexpr int kMaxNesting = 100;

bool IsQuantifierBrace(std::string_view brace) {  // {n} {n,} {n,m} {,m}
  bool digits = false;
  int commas = 0;
  for (const char c : brace.substr(1, brace.size() - 2)) {
    if (c == ',') {
      ++commas;
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      digits = true;
    } else {
      return false;
    }
  }
  return digits && commas <= 1;
}

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  std::string Run() {
    groups_.push_back({});
    while (position_ < in_.size()) Step();
    if (groups_.size() != 1) throw Fault("has an unclosed '('");
    out_.append(groups_.back().extra_closers, ')');
    return std::move(out_);
  }

 private:
  struct Group {
    size_t begin = 0;          // offset in out_
    size_t extra_closers = 0;  // number of extra groups opened here for options such as (?i)
  };

  Error Fault(std::string_view what) const {
    return Invalid("{}: regular expression '{}' {}", where_, in_, what);
  }

  bool Accept(std::string_view text) {
    if (in_.substr(position_, text.size()) != text) return false;
    position_ += text.size();
    return true;
  }

  char Take() {
    if (position_ == in_.size()) throw Fault("ends too early");
    return in_[position_++];
  }

  void Step() {
    const char c = in_[position_];
    if (c == '(') return OpenGroup();
    if (c == ')') return CloseGroup();
    if (c == '{') return Brace();
    if (c == '*' || c == '+' || c == '?') {
      out_ += Take();
      return;
    }
    atom_begin_ = out_.size();
    if (Accept("[")) {
      out_ += Class(0);
    } else if (Accept("\\")) {
      out_ += Escape();
    } else {
      out_ += Take();
      while (position_ < in_.size() && (in_[position_] & 0xC0) == 0x80) out_ += Take();
    }
  }

  void OpenGroup() {
    if (groups_.size() > kMaxNesting) throw Fault("nests too deeply");
    if (Accept("(*")) throw Fault("starts a group with '(*'");
    if (Accept("(?#")) {
      while (Take() != ')') {
      }
      return;
    }
    const size_t begin = out_.size();
    if (!Accept("(?")) {
      out_ += Take();
      groups_.push_back({begin});
      return;
    }
    out_ += "(?";
    const size_t options_end = in_.find_first_not_of("imx-", position_);
    const char after = options_end == std::string_view::npos ? '\0' : in_[options_end];
    if (options_end == position_ || (after != ':' && after != ')')) {  // as in (?: and (?=
      groups_.push_back({begin});
      return;
    }
    while (position_ < options_end) {
      const char option = Take();
      out_ += option == 'm' ? 's' : option;
    }
    Take();
    out_ += ':';
    // (?i: opens a group; (?i) applies up to the end of the enclosing group, across its
    // alternatives.
    if (after == ':') {
      groups_.push_back({begin});
    } else {
      ++groups_.back().extra_closers;
    }
  }

  void CloseGroup() {
    if (groups_.size() == 1) throw Fault("has an unmatched ')'");
    Take();
    out_.append(groups_.back().extra_closers + 1, ')');
    atom_begin_ = groups_.back().begin;
    groups_.pop_back();
  }

  void Brace() {
    const size_t close = in_.find('}', position_);
    const std::string_view brace =
        close == std::string_view::npos ? "" : in_.substr(position_, close + 1 - position_);
    if (brace.empty() || !IsQuantifierBrace(brace)) {
      Take();
      atom_begin_ = out_.size();
      out_ += "\\{";
      return;
    }
    position_ = close + 1;
    out_ += brace[1] == ',' ? "{0" : "{";
    out_ += brace.substr(1);
    const char next = position_ < in_.size() ? in_[position_] : '\0';
    const bool exact = brace.find(',') == std::string_view::npos;
    // Oniguruma reads a following + or ? as a second quantifier, PCRE2 as a modifier of the first.
    // So the quantified atom becomes a group.
    if (next == '+' || (next == '?' && exact)) {
      out_.insert(atom_begin_, "(?:");
      out_ += ')';
    }
  }

  std::string Escape() {
    const char c = Take();
    switch (c) {
      case 'w':
        return Bracket("", kWordItems);
      case 'W':
        return Bracket("^", kWordItems);
      case 'h':
        return Bracket("", kHexItems);
      case 'H':
        return Bracket("^", kHexItems);
      case 'b':
        return WordBoundary("(?!", "(?=");
      case 'B':
        return WordBoundary("(?=", "(?!");
      default: {
        std::string items = CommonEscape(c, "AzZGRXKkg0123456789");
        return items.starts_with('[') ? Bracket("", items) : items;
      }
    }
  }

  // Translates an escape that is an atom outside of classes and an item within them. `kept`:
  // further letters with the same meaning in PCRE2.
  std::string CommonEscape(char c, std::string_view kept) {
    switch (c) {
      case 's':
        return R"(\p{White_Space})";
      case 'S':
        return R"(\P{White_Space})";
      case 'v':
        return R"(\x0B)";
      case 'u':
        return Codepoint();
      case 'p':
      case 'P':
        return Property(c);
      default:
        break;
    }
    constexpr std::string_view kAlike = "dDntrfeax";
    const bool alike =
        kAlike.find(c) != std::string_view::npos || kept.find(c) != std::string_view::npos;
    const bool letter_or_byte = std::isalnum(static_cast<unsigned char>(c)) || (c & 0x80);
    return (alike || !letter_or_byte ? "\\" : "") + std::string(1, c);
  }

  // Written out, because \b of PCRE2 has a different definition of word characters.
  static std::string WordBoundary(std::string_view after_word, std::string_view after_other) {
    const std::string word = Bracket("", kWordItems);
    return "(?:(?<=" + word + ")" + std::string(after_word) + word + ")|(?<!" + word + ")" +
           std::string(after_other) + word + "))";
  }

  static std::string Bracket(std::string_view caret, std::string_view items) {
    return "[" + std::string(caret) + std::string(items) + "]";
  }

  std::string Codepoint() {  // \uHHHH
    std::string out = "\\x{";
    for (int i = 0; i < 4; ++i) {
      out += Take();
      if (!std::isxdigit(static_cast<unsigned char>(out.back())))
        throw Fault("has a malformed \\u");
    }
    return out + "}";
  }

  // Translates \p{…} or \P{…} to an item of a class.
  std::string Property(char p) {
    if (!Accept("{")) return std::string("\\") + p;
    std::string name;
    const bool negated = Accept("^");
    for (char c = Take(); c != '}'; c = Take()) {
      if (c != '_' && c != ' ' && c != '-')
        name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    if (name == "punct") return (p == 'P') != negated ? "[:^punct:]" : "[:punct:]";
    return std::string("\\") + p + (negated ? "{^" : "{") + Pcre2PropertyName(name) + "}";
  }

  // One operand of && in a class: plain items, and parts that PCRE2 cannot express within brackets.
  struct Union {
    std::string items;
    std::vector<std::string> parts;

    std::string Expression() const {
      if (parts.empty()) return items.empty() ? "(?!)" : "[" + items + "]";
      std::string out = "(?:";
      if (!items.empty()) out += "[" + items + "]|";
      for (const std::string& part : parts) out += part + "|";
      out.back() = ')';
      return out;
    }
  };

  // Returns an expression that matches one character of the class whose '[' was just read.
  std::string Class(int depth) {
    if (depth > kMaxNesting) throw Fault("nests too deeply");
    const bool negated = Accept("^");
    std::vector<Union> operands(1);
    bool first = true;
    for (; first || !Accept("]"); first = false) {
      if (Accept("&&")) {
        operands.emplace_back();
      } else {
        ClassItem(&operands.back(), depth);
      }
    }
    if (operands.size() == 1 && operands[0].parts.empty())
      return Bracket(negated ? "^" : "", operands[0].items);

    std::string all;
    for (size_t i = 0; i + 1 < operands.size(); ++i) all += "(?=" + operands[i].Expression() + ")";
    all += operands.back().Expression();
    return negated ? "(?:(?!" + all + ")" + std::string(kAnyCharacter) + ")" : "(?:" + all + ")";
  }

  void ClassItem(Union* to, int depth) {
    if (in_.substr(position_, 2) == "[:") {
      const size_t close = in_.find(":]", position_ + 2);
      if (close != std::string_view::npos) {
        to->items += in_.substr(position_, close + 2 - position_);
        position_ = close + 2;
        return;
      }
    }
    if (Accept("[")) {
      to->parts.push_back(Class(depth + 1));
    } else if (Accept("\\")) {
      ClassEscape(to);
    } else {
      const char c = Take();
      if (c == '^' || c == ']') to->items += '\\';
      to->items += c;
    }
  }

  void ClassEscape(Union* to) {
    const char c = Take();
    switch (c) {
      case 'w':
        to->items += kWordItems;
        return;
      case 'W':
        to->parts.push_back(Bracket("^", kWordItems));
        return;
      case 'h':
        to->items += kHexItems;
        return;
      case 'H':
        to->parts.push_back(Bracket("^", kHexItems));
        return;
      default:
        to->items += CommonEscape(c, "b01234567");
    }
  }

  std::string_view in_;
  std::string_view where_;
  size_t position_ = 0;
  std::string out_;
  size_t atom_begin_ = 0;  // offset in out_ of the atom that a following quantifier repeats
  std::vector<Group> groups_;
};

}  // namespace

std::string OnigurumaToPcre2(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).Run();
}

}  // namespace switchyard
