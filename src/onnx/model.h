// An ONNX model as detent holds it: names and structure parsed, everything else carried along as it stands in the file.
// Field numbers and meanings: onnx.proto3 of the ONNX project.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnx/tensor.h"
#include "onnx/wire.h"

namespace detent::onnx {

class ExternalFiles;

/// An AttributeProto. Name and kind are parsed; values are read on demand and throw bad_input when of another kind.
class Attribute {
 public:
  enum class Kind {
    undefined = 0,
    f = 1,
    i = 2,
    s = 3,
    t = 4,
    g = 5,
    floats = 6,
    ints = 7,
    strings = 8,
    tensors = 9,
    graphs = 10
  };

  explicit Attribute(Wire raw);
  static Attribute of_int(std::string_view name, std::int64_t value);
  static Attribute of_float(std::string_view name, float value);
  static Attribute of_string(std::string_view name, std::string_view value);
  /// `kind` is t, g, tensors or graphs; the messages are serialized TensorProtos or GraphProtos.
  static Attribute of_messages(std::string_view name, Kind kind, const std::vector<std::string>& messages);
  static Attribute of_ints(std::string_view name, const std::vector<std::int64_t>& values);

  const std::string& name() const noexcept { return name_; }
  Kind kind() const noexcept { return kind_; }
  const Wire& raw() const noexcept { return raw_; }

  std::int64_t as_int() const;
  float as_float() const;
  std::string as_string() const;
  std::vector<std::int64_t> as_ints() const;
  std::vector<float> as_floats() const;
  Wire as_tensor() const;
  /// The GraphProtos of a `g` or `graphs` attribute.
  std::vector<Wire> as_graphs() const;

 private:
  std::string name_;
  Kind kind_ = Kind::undefined;
  Wire raw_;
};

/// A NodeProto. An unchanged node is written back byte for byte.
class Node {
 public:
  explicit Node(const Wire& raw);
  Node(std::string op_type, std::string name, std::vector<std::string> inputs, std::vector<std::string> outputs,
       std::vector<Attribute> attributes = {}, std::string domain = {});

  const std::string& op_type() const noexcept { return op_type_; }
  const std::string& name() const noexcept { return name_; }
  /// "" for the ONNX domain, also when the file spells it "ai.onnx".
  const std::string& domain() const noexcept { return domain_; }
  /// An optional input that is left out is "".
  const std::vector<std::string>& inputs() const noexcept { return inputs_; }
  const std::vector<std::string>& outputs() const noexcept { return outputs_; }
  const std::vector<Attribute>& attributes() const noexcept { return attributes_; }
  const Attribute* attribute(std::string_view name) const noexcept;
  std::int64_t int_or(std::string_view name, std::int64_t fallback) const;
  float float_or(std::string_view name, float fallback) const;
  bool is(std::string_view op_type) const noexcept { return domain_.empty() && op_type_ == op_type; }
  /// "Conv 'conv1'", or "Conv (output 'x')" for a node without a name.
  std::string label() const;
  /// The name, or the first output where the node has none: what selections and reports use.
  const std::string& id() const noexcept;
  /// The body that the node belongs to, and those that it holds: positions in Model::bodies and one more; 0: none.
  int body() const noexcept { return body_; }
  const std::vector<int>& bodies() const noexcept { return bodies_; }

  void set_name(std::string name);
  void set_input(std::size_t index, std::string name);
  void set_inputs(std::vector<std::string> names);
  void set_output(std::size_t index, std::string name);
  void set_op_type(std::string op_type);
  void set_attribute(Attribute attribute);
  void remove_attribute(std::string_view name);
  void set_body(int body) noexcept { body_ = body; }
  void set_bodies(std::vector<int> bodies) { bodies_ = std::move(bodies); }

  /// The serialized NodeProto, without the bodies of Model::bodies.
  Wire encode() const;

 private:
  std::string op_type_, name_, domain_;
  std::vector<std::string> inputs_, outputs_;
  std::vector<Attribute> attributes_;
  std::vector<RawField> other_;
  Wire raw_;  // empty once changed
  int body_ = 0;
  std::vector<int> bodies_;
};

/// A dimension: a value, or a symbol (dynamic; the symbol may be empty).
struct Dim {
  std::int64_t value = -1;
  std::string symbol;
  bool is_static() const noexcept { return value >= 0; }
};

/// A ValueInfoProto of a tensor; `type` is undefined for sequences, maps and optionals.
struct ValueInfo {
  std::string name;
  DataType type = DataType::undefined;
  std::optional<std::vector<Dim>> shape;
  Wire raw;  // empty for one made by detent
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<Tensor> initializers;
  std::vector<ValueInfo> inputs, outputs, value_infos;
  std::vector<std::string> sparse_initializers;  // names; the tensors stay in `other`
  std::vector<RawField> other;                   // every other field, in file order
};

/// A body of an If, Loop or Scan whose nodes stand among those of the main graph (onnx/bodies.h).
struct Body {
  std::string attribute;                   // of the node that holds it
  int around = 0;                          // the body that this node belongs to
  std::vector<ValueInfo> inputs, outputs;  // as declared; what they are called now, the nodes tell
  std::vector<RawField> other;
};

struct OpsetImport {
  std::string domain;  // "" for the ONNX domain
  std::int64_t version = 0;
  Wire raw;  // empty once changed
};

struct Model {
  std::filesystem::path path;
  std::shared_ptr<const MappedFile> file;
  std::shared_ptr<ExternalFiles> external;
  std::int64_t ir_version = 0;
  std::vector<OpsetImport> opsets;
  Graph graph;
  std::vector<Body> bodies;
  std::vector<std::string> functions;  // "domain::name" of model-local functions; the functions stay in `other`
  std::vector<RawField> other;         // every other top-level field, in file order

  /// Version of the opset imported for a domain; 0 when it is not imported.
  std::int64_t opset(std::string_view domain = {}) const noexcept;
  void set_opset(std::string_view domain, std::int64_t version);
  void set_ir_version(std::int64_t version);
  void set_producer(std::string_view name, std::string_view version);
  /// An entry of the model's metadata_props; empty: there is none.
  std::string metadata(std::string_view key) const;
  /// Adds an entry that is not there yet.
  void add_metadata(std::string_view key, std::string_view value);
};

/// Maps and parses a model; tensor data stay in their files. Only the initializers of the main graph may be external
/// afterwards: other tensors with external data are read and stand in the model. Throws bad_input naming the file and
/// the place for anything that is not a sound ONNX model of IR version 3 or later, and for names that check_scope()
/// (onnx/functions.h) or check_functions() (onnx/functions.h) refuses.
Model read_model(const std::filesystem::path& path);

/// Parses a GraphProto on its own, as for the body of an If, Loop or Scan.
Graph read_graph(const Wire& raw, const std::shared_ptr<const MappedFile>& file, ExternalFiles& external,
                 const std::string& where);

/// Reads the tensor of an attribute (as of Constant's `value`).
Tensor read_attribute_tensor(const Model& model, const Node& node, const Attribute& attribute);

/// Integers of 8 bits or more, or bool.
inline bool holds_integers(DataType type) {
  switch (type) {
    case DataType::boolean:
    case DataType::int8:
    case DataType::uint8:
    case DataType::int16:
    case DataType::uint16:
    case DataType::int32:
    case DataType::uint32:
    case DataType::int64:
    case DataType::uint64: return true;
    default: return false;
  }
}

/// The operators of AMD Quark's library that models with block floats have.
inline constexpr const char* kQuarkDomain = "com.amd.quark";

}  // namespace detent::onnx
