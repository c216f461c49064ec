// Writes JSON: objects and arrays of strings, integers and booleans. No reading, no floats.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace limbo {

class JsonWriter {
 public:
  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_array() { open('['); }
  void end_array() { close(']'); }

  // The name of the next value of an object.
  void key(std::string_view name) {
    separate();
    quote(name);
    text_ += ':';
    after_key_ = true;
  }

  void value(std::string_view text) {
    separate();
    quote(text);
  }

  void value(std::integral auto number) {
    separate();
    text_ += std::to_string(number);
  }

  void value(bool truth) {
    separate();
    text_ += truth ? "true" : "false";
  }

  template <typename Value>
  void field(std::string_view name, const Value& content) {
    key(name);
    value(content);
  }

  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  void open(char bracket) {
    separate();
    text_ += bracket;
    first_ = true;
  }

  void close(char bracket) {
    text_ += bracket;
    first_ = false;
  }

  void separate() {
    if (!first_ && !after_key_) text_ += ',';
    first_ = false;
    after_key_ = false;
  }

  void quote(std::string_view text) {
    constexpr std::string_view kHexDigits = "0123456789abcdef";
    text_ += '"';
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (byte < 0x20) {
        text_ += "\\u00";
        text_ += kHexDigits[byte >> 4U];
        text_ += kHexDigits[byte & 15U];
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_;
  bool first_ = true;
  bool after_key_ = false;
};

}  // namespace limbo
