// Endpoints of stored responses: read, stream again, delete, cancel, and list the input.
#include <fmt/format.h>

#include <algorithm>

#include "server/endpoints.h"
#include "server/responses.h"

namespace moxie {
namespace {

constexpr int64_t kMaxItems = 100, kDefaultItems = 20;

std::string id_of(const Exchange& exchange) {
  const std::string& path = exchange.request().path;
  const size_t begin = std::string("/v1/responses/").size();
  return path.substr(begin, path.find('/', begin) - begin);
}

StoredPtr stored_or_error(App& app, Exchange& exchange) {
  const std::string id = id_of(exchange);
  StoredPtr stored = app.store().find(id);
  if (stored == nullptr) {
    respond_error(exchange,
                  {.status = 404,
                   .message = fmt::format("Response with id '{}' not found.", id.substr(0, 128)),
                   .param = "response_id",
                   .code = "response_not_found"});
  }
  return stored;
}

void stream_again(const ExchangePtr& exchange, const StoredResponse& stored) {
  const auto after = query_integer(exchange->request(), "starting_after", 0, INT64_MAX - 1, -1);
  if (!after) return respond_error(*exchange, after.error());
  if (stored.events == nullptr || !stored.events->has_all()) {
    return respond_error(
        *exchange,
        {.message =
             stored.events == nullptr
                 ? "Only responses made with 'background' and 'stream' can be streamed again."
                 : "This response has more events than are kept: it cannot be streamed again.",
         .param = "stream",
         .code = "unsupported_parameter"});
  }
  stored.events->listen(exchange, static_cast<uint64_t>(*after + 1));
}

}  // namespace

void handle_response_get(App& app, const ExchangePtr& exchange) {
  const auto stream = query_value(exchange->request().query, "stream").value_or("false");
  if (stream != "true" && stream != "false") {
    return respond_error(*exchange, wrong_query("stream", "true or false"));
  }
  const StoredPtr stored = stored_or_error(app, *exchange);
  if (stored == nullptr) return;
  const bool has_body = exchange->request().method != "HEAD";
  if (stream == "true" && has_body) return stream_again(exchange, *stored);
  exchange->respond(json_response(stored->document));
}

void handle_response_delete(App& app, const ExchangePtr& exchange) {
  const StoredPtr stored = stored_or_error(app, *exchange);
  if (stored == nullptr) return;
  if (stored->cancel) stored->cancel();
  const std::string id = id_of(*exchange);
  app.store().erase(id);
  exchange->respond(json_response({{"id", id}, {"object", "response"}, {"deleted", true}}));
}

void handle_response_cancel(App& app, const ExchangePtr& exchange) {
  StoredPtr stored = stored_or_error(app, *exchange);
  if (stored == nullptr) return;
  if (stored->document["background"] != true) {
    return respond_error(*exchange, {.message = "Only background responses can be cancelled.",
                                     .param = "response_id",
                                     .code = "invalid_value"});
  }
  if (stored->cancel) {
    stored->cancel();
    stored = app.store().find(id_of(*exchange));
  }
  exchange->respond(json_response(stored != nullptr ? stored->document : Json::object()));
}

void handle_response_items(App& app, const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  const auto order = query_value(request.query, "order").value_or("desc");
  if (order != "asc" && order != "desc") {
    return respond_error(*exchange, wrong_query("order", "asc or desc"));
  }
  const auto limit = query_integer(request, "limit", 1, kMaxItems, kDefaultItems);
  if (!limit) return respond_error(*exchange, limit.error());
  const StoredPtr stored = stored_or_error(app, *exchange);
  if (stored == nullptr) return;
  Json items = stored->input_items;
  if (order == "desc") std::reverse(items.begin(), items.end());
  auto begin = items.begin();
  if (const auto after = query_value(request.query, "after")) {
    const auto is_it = [&](const Json& item) { return item.value("id", Json()) == *after; };
    begin = std::find_if(items.begin(), items.end(), is_it);
    if (begin == items.end()) {
      return respond_error(*exchange, wrong_query("after", "the id of an item of this response"));
    }
    ++begin;
  }
  Json page = Json::array();
  for (; begin != items.end() && std::cmp_less(page.size(), *limit); ++begin) {
    page.push_back(*begin);
  }
  const bool has_more = begin != items.end();
  const Json first = page.empty() ? Json() : page.front().value("id", Json());
  const Json last = page.empty() ? Json() : page.back().value("id", Json());
  exchange->respond(json_response({{"object", "list"},
                                   {"data", std::move(page)},
                                   {"first_id", first},
                                   {"last_id", last},
                                   {"has_more", has_more}}));
}

}  // namespace moxie
