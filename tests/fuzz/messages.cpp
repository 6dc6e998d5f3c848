#include "fuzz/messages.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <random>
#include <vector>

namespace detent::fuzz {
namespace {

constexpr int kDeepest = 40;

/// A field of a message; the whole message is one as well.
struct Field {
  std::uint32_t number = 1;
  protozero::pbf_wire_type type = protozero::pbf_wire_type::varint;
  std::uint64_t value = 0;     // of a number
  const Kind* kind = nullptr;  // of a message
  std::string bytes;           // of what has a length and is no message
  std::vector<Field> fields;   // of a message

  bool has_length() const { return type == protozero::pbf_wire_type::length_delimited; }
};

Field message_of(const Kind& kind) {
  Field field;
  field.type = protozero::pbf_wire_type::length_delimited;
  field.kind = &kind;
  return field;
}

const Kind* kind_of(const Kind& kind, std::uint32_t number) {
  for (const auto& [field, child] : kind.messages) {
    if (field == number) return child;
  }
  return nullptr;
}

/// What cannot be parsed as a message ends there.
Field parse(std::string_view bytes, const Kind& kind, int depth) {
  Field message = message_of(kind);
  try {
    protozero::pbf_reader in(bytes.data(), bytes.size());
    while (in.next()) {
      Field field;
      field.type = in.wire_type();
      switch (field.type) {
        case protozero::pbf_wire_type::varint: field.value = in.get_uint64(); break;
        case protozero::pbf_wire_type::fixed64: field.value = in.get_fixed64(); break;
        case protozero::pbf_wire_type::fixed32: field.value = in.get_fixed32(); break;
        default: {
          const auto view = in.get_view();
          const Kind* child = kind_of(kind, in.tag());
          if (child != nullptr && depth < kDeepest) {
            field = parse({view.data(), view.size()}, *child, depth + 1);
          } else {
            field.bytes.assign(view.data(), view.size());
          }
        }
      }
      field.number = in.tag();
      message.fields.push_back(std::move(field));
    }
  } catch (const protozero::exception&) {
    return message;
  }
  return message;
}

std::string serialized(const Field& message) {
  std::string out;
  protozero::pbf_writer writer(out);
  for (const Field& field : message.fields) {
    if (field.number == 0 || (field.number >= 19000 && field.number < 20000)) continue;  // the writer refuses them
    switch (field.type) {
      case protozero::pbf_wire_type::varint: writer.add_uint64(field.number, field.value); break;
      case protozero::pbf_wire_type::fixed64: writer.add_fixed64(field.number, field.value); break;
      case protozero::pbf_wire_type::fixed32:
        writer.add_fixed32(field.number, static_cast<std::uint32_t>(field.value));
        break;
      default: writer.add_bytes(field.number, field.kind == nullptr ? field.bytes : serialized(field));
    }
  }
  return out;
}

// All messages in it, itself included.
void collect(Field& message, std::vector<Field*>& all) {
  all.push_back(&message);
  for (Field& field : message.fields) {
    if (field.kind != nullptr) collect(field, all);
  }
}

class Mutation {
 public:
  Mutation(Field& message, Field& other, std::size_t max_size, std::uint32_t seed, const ByteMutator& change)
      : message_(message), other_(other), max_size_(max_size), random_(seed), change_(change) {}

  void run() {
    for (std::size_t left = 1 + below(3); left > 0; --left) once();
  }

 private:
  std::size_t below(std::size_t count) { return random_() % count; }
  template <typename T>
  T& any(std::vector<T>& of) {
    return of[below(of.size())];
  }

  void once() {
    std::vector<Field*> all;
    collect(message_, all);
    Field& at = *any(all);
    auto& fields = at.fields;
    if (fields.empty() || below(12) == 0) {
      fields.insert(fields.begin() + static_cast<std::ptrdiff_t>(below(fields.size() + 1)), fresh(at));
      return;
    }
    const auto place = fields.begin() + static_cast<std::ptrdiff_t>(below(fields.size()));
    switch (below(9)) {
      case 0: fields.erase(place); break;
      case 1: fields.insert(fields.begin() + static_cast<std::ptrdiff_t>(below(fields.size())), Field(*place)); break;
      case 2: std::swap(*place, any(fields)); break;
      case 3: take_over(at, message_); break;
      case 4: take_over(at, other_); break;
      case 5: place->number = static_cast<std::uint32_t>(1 + below(30)); break;
      case 6:
        if (place->kind == nullptr) place->type = static_cast<protozero::pbf_wire_type>(any(wire_types_));
        break;
      default: change(*place);
    }
  }

  // A field of a message of the same kind, beside or in place of one of `at`.
  void take_over(Field& at, Field& from) {
    std::vector<Field*> all;
    collect(from, all);
    std::erase_if(all, [&](const Field* m) { return m->kind != at.kind || m->fields.empty(); });
    if (all.empty()) return;
    Field copy = any(any(all)->fields);
    if (below(2) == 0) {
      at.fields.push_back(std::move(copy));
    } else {
      any(at.fields) = std::move(copy);
    }
  }

  Field fresh(const Field& at) {
    auto number_of_field = static_cast<std::uint32_t>(1 + below(25));
    const auto& messages = at.kind->messages;
    if (!messages.empty() && below(2) == 0) number_of_field = messages[below(messages.size())].first;
    const Kind* child = kind_of(*at.kind, number_of_field);
    Field field = child != nullptr ? message_of(*child) : Field();
    field.number = number_of_field;
    field.value = number();
    if (child == nullptr && below(2) == 0) {
      field.type = protozero::pbf_wire_type::length_delimited;
      field.bytes = name();
    }
    return field;
  }

  void change(Field& field) {
    if (field.kind != nullptr) {
      if (below(4) == 0) field.fields.clear();
    } else if (!field.has_length()) {
      field.value = below(3) == 0 ? field.value + below(5) - 2 : number();
    } else {
      field.bytes = below(3) == 0 ? name() : change_(field.bytes, std::max(max_size_ / 4, field.bytes.size()));
    }
  }

  std::uint64_t number() {
    static constexpr std::array<std::uint64_t, 20> kNumbers{0,
                                                            1,
                                                            2,
                                                            3,
                                                            4,
                                                            7,
                                                            8,
                                                            16,
                                                            17,
                                                            127,
                                                            128,
                                                            255,
                                                            1000,
                                                            65536,
                                                            0x7FFFFFFF,
                                                            0x80000000,
                                                            0xFFFFFFFF,
                                                            1ULL << 62,
                                                            0x7FFFFFFFFFFFFFFF,
                                                            0xFFFFFFFFFFFFFFFF};
    if (below(4) == 0) return random_() % 64;
    return kNumbers[below(kNumbers.size())];
  }

  // A text that stands somewhere else: links one part of a model with another.
  std::string name() {
    std::vector<Field*> all;
    collect(below(4) == 0 ? other_ : message_, all);
    for (int tries = 0; tries < 20; ++tries) {
      auto& fields = any(all)->fields;
      if (fields.empty()) continue;
      const Field& field = any(fields);
      if (field.has_length() && field.kind == nullptr && field.bytes.size() < 64) return field.bytes;
    }
    return "x";
  }

  Field& message_;
  Field& other_;
  std::size_t max_size_;
  std::minstd_rand random_;
  const ByteMutator& change_;
  std::vector<int> wire_types_{0, 1, 2, 5};
};

}  // namespace

std::string mutated(std::string_view message, std::string_view other, const Kind& kind, std::size_t max_size,
                    std::uint32_t seed, const ByteMutator& change) {
  Field parsed = parse(message, kind, 0);
  Field donor = parse(other, kind, 0);
  Mutation(parsed, donor, max_size, seed, change).run();
  std::string out = serialized(parsed);
  return out.size() <= max_size ? out : change(std::string(message), max_size);
}

}  // namespace detent::fuzz
