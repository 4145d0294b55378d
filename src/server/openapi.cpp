// Makes the OpenAPI document from the table of routes and the tables of fields.
#include "server/routes.h"

namespace moxie {
namespace {

Json body_schema(const std::vector<FieldInfo>& fields) {
  Json properties = Json::object(), required = Json::array();
  for (const FieldInfo& field : fields) {
    Json schema = field.schema;
    schema["description"] = (field.use == FieldUse::kIgnored   ? "Accepted, without effect: "
                             : field.use == FieldUse::kRefused ? "Not supported: "
                                                               : "") +
                            field.about;
    if (field.use != FieldUse::kUsed) {
      schema["x-moxie"] = field.use == FieldUse::kIgnored ? "ignored" : "refused";
    }
    properties[field.name] = std::move(schema);
    if (field.required) required.push_back(field.name);
  }
  Json schema = {{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) schema["required"] = std::move(required);
  schema["additionalProperties"] = false;
  return schema;
}

Json operation(const Route& route) {
  Json operation = {{"summary", route.summary},
                    {"responses",
                     {{"200", {{"description", "done"}}},
                      {"default",
                       {{"description", "an error"},
                        {"content",
                         {{"application/json",
                           {{"schema",
                             {{"$ref", route.form == ErrorForm::kAnthropic
                                           ? "#/components/schemas/AnthropicError"
                                           : "#/components/schemas/Error"}}}}}}}}}}}};
  std::string name(route.method);
  for (const char c : route.pattern) name += c == '/' || c == '{' || c == '}' ? '_' : c;
  operation["operationId"] = name;
  Json parameters = Json::array();
  for (size_t at = route.pattern.find('{'); at != route.pattern.npos;
       at = route.pattern.find('{', at + 1)) {
    const size_t end = route.pattern.find('}', at);
    parameters.push_back({{"name", route.pattern.substr(at + 1, end - at - 1)},
                          {"in", "path"},
                          {"required", true},
                          {"schema", {{"type", "string"}}}});
  }
  for (const FieldInfo& field : route.query != nullptr ? route.query() : std::vector<FieldInfo>{}) {
    parameters.push_back({{"name", field.name},
                          {"in", "query"},
                          {"description", field.about},
                          {"schema", field.schema}});
  }
  if (!parameters.empty()) operation["parameters"] = std::move(parameters);
  if (route.fields != nullptr) {
    operation["requestBody"] = {
        {"required", true},
        {"content", {{"application/json", {{"schema", body_schema(route.fields())}}}}}};
  }
  operation["security"] =
      route.use <= Route::kPage
          ? Json::array()
          : Json::array({{{"bearer", Json::array()}}, {{"x-api-key", Json::array()}}});
  return operation;
}

Json make_document() {
  Json paths = Json::object();
  for (const Route& route : routes()) {
    std::string method(route.method);
    for (char& c : method) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    paths[std::string(route.pattern)][method] = operation(route);
  }
  const Json text = {{"type", "string"}};
  const Json maybe = {{"type", {"string", "null"}}};
  const Json error = {
      {"type", "object"},
      {"properties",
       {{"error",
         {{"type", "object"},
          {"properties", {{"message", text}, {"type", text}, {"param", maybe}, {"code", maybe}}},
          {"required", {"message", "type", "param", "code"}}}}}},
      {"required", {"error"}}};
  const Json anthropic = {
      {"type", "object"},
      {"properties",
       {{"type", {{"const", "error"}}},
        {"error", {{"type", "object"}, {"properties", {{"type", text}, {"message", text}}}}}}}};
  return {{"openapi", "3.1.0"},
          {"info",
           {{"title", "Moxie"},
            {"version", MOXIE_VERSION},
            {"description", "gpt-oss over the OpenAI and Anthropic interfaces"}}},
          {"paths", std::move(paths)},
          {"components",
           {{"schemas", {{"Error", error}, {"AnthropicError", anthropic}}},
            {"securitySchemes",
             {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
              {"x-api-key", {{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}}}}}}}};
}

}  // namespace

const Json& openapi_document() {
  static const Json document = make_document();
  return document;
}

}  // namespace moxie
