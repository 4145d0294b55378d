// Names, hashes, headers, and the faults of the network: what needs no server.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "hub/hash.h"
#include "hub/http.h"
#include "hub/names.h"
#include "hub/retry.h"
#include "hub/settings.h"

namespace moxie::hub {
namespace {

std::string hash_of(HashKind kind, const std::string& text) {
  Hasher hasher(kind, text.size());
  const auto bytes = std::as_bytes(std::span(text));
  hasher.add(bytes.first(text.size() / 2));
  hasher.add(bytes.subspan(text.size() / 2));
  return hasher.finish();
}

TEST(HubNames, RepositoriesByTheHubsRules) {
  for (const char* repo : {"gpt2", "openai/gpt-oss-20b", "Foo-BAR_foo.bar123", "a/b"})
    EXPECT_TRUE(check_repo(repo)) << repo;
  const std::string long_name(97, 'x');
  for (const std::string repo : {"", "/", "a/", "/a", "a/b/c", ".a/b", "a/b.", "-a", "a--b", "a..b",
                                 "a b", "a/b\n", "ä", "a/%2e", long_name.c_str()})
    EXPECT_FALSE(check_repo(repo)) << repo;
}

TEST(HubNames, RevisionsAndPathsStayBelowTheirFolder) {
  for (const char* good : {"main", "v1.0", "refs/pr/12", "feature/x y", "a.b/..c/d..", "ü.json"}) {
    EXPECT_TRUE(check_revision(good)) << good;
    EXPECT_TRUE(check_file_path(good)) << good;
  }
  for (const std::string bad : {"", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/./b", "a\\b",
                                "a\nb", "a\x1b[2J", "a\x7f", "a\xc2\x9b", "a/../../b"}) {
    EXPECT_FALSE(check_revision(bad)) << bad;
    EXPECT_FALSE(check_file_path(bad)) << bad;
  }
  EXPECT_FALSE(check_file_path(std::string("a\0b", 3)));
  EXPECT_FALSE(check_file_path(std::string(256, 'x')));
  EXPECT_FALSE(check_file_path(std::string(2000, 'x')));
}

TEST(HubNames, GlobsAsFnmatchReadsThem) {
  EXPECT_TRUE(matches("*.safetensors", "model.safetensors"));
  EXPECT_TRUE(matches("*.safetensors", "original/model.safetensors"));  // * takes in /
  EXPECT_FALSE(matches("*.safetensors", "model.safetensors.index.json"));
  EXPECT_TRUE(matches("original/", "original/a/b"));
  EXPECT_FALSE(matches("original/", "original"));
  EXPECT_TRUE(matches("m?del-[0-9][0-9].*", "model-01.x"));
  EXPECT_FALSE(matches("m?del-[0-9][0-9].*", "model-0a.x"));
  EXPECT_TRUE(matches("[!a]b", "cb"));
  EXPECT_FALSE(matches("[!a]b", "ab"));
  EXPECT_TRUE(matches("[]]", "]"));
  EXPECT_TRUE(matches("[ab", "[ab"));
  EXPECT_TRUE(matches("*a*b*c*", "xaybzc"));
  EXPECT_FALSE(matches("*a*b*c*", "xaybz"));
  EXPECT_TRUE(matches("", ""));
  EXPECT_FALSE(matches("", "a"));
  EXPECT_FALSE(matches("a", ""));
  EXPECT_TRUE(matches("**", ""));
  // Not exponential.
  EXPECT_FALSE(matches("*a*a*a*a*a*a*a*a*a*a*a*a*b", std::string(5000, 'a')));
}

TEST(HubNames, EtagsAsHuggingfaceHubNamesBlobs) {
  const std::string hash(40, 'a');
  EXPECT_EQ(normalized_etag("\"" + hash + "\""), hash);
  EXPECT_EQ(normalized_etag("W/\"" + hash + "\""), hash);
  EXPECT_EQ(normalized_etag(hash), hash);
  for (const char* bad : {"", "\"../x\"", "a/b", "\"a b\"", "a.b"})
    EXPECT_EQ(normalized_etag(bad), "") << bad;
}

TEST(HubNames, QuotesForUrls) {
  EXPECT_EQ(url_quoted("refs/pr/1", false), "refs%2Fpr%2F1");
  EXPECT_EQ(url_quoted("a b/ü#?%.json", true), "a%20b/%C3%BC%23%3F%25.json");
}

TEST(HubNames, NextLinks) {
  EXPECT_EQ(next_link("<https://h/x?a=1&cursor=b>; rel=\"next\""), "https://h/x?a=1&cursor=b");
  EXPECT_EQ(next_link("<u1>; rel=\"prev\", <u2>; title=\"x\"; rel=\"next\""), "u2");
  for (const char* none : {"", "<u>", "<u>; rel=\"last\"", "u; rel=\"next\"", "<u; rel=\"next\""})
    EXPECT_EQ(next_link(none), "") << none;
}

TEST(HubNames, WordsOfServersAreSafeForATerminal) {
  EXPECT_EQ(printable_line("a\x1b[31m\nb\xc2\x9b"
                           "c\x7f"),
            "a?[31m?b?c?");
  EXPECT_EQ(printable_line(std::string(1000, 'x'), 5), "xxxxx");
}

TEST(HubHash, KnownValues) {
  EXPECT_EQ(hash_of(HashKind::kSha256, "abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of(HashKind::kGitBlob, ""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(hash_of(HashKind::kGitBlob, "hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
}

TEST(HubHttp, HeaderLines) {
  std::string name, value;
  EXPECT_TRUE(split_header("X-Linked-Etag:  \"a\" \r\n", &name, &value));
  EXPECT_EQ(name + "=" + value, "x-linked-etag=\"a\"");
  EXPECT_TRUE(split_header("A:", &name, &value));
  EXPECT_EQ(value, "");
  EXPECT_FALSE(split_header("HTTP/1.1 200 OK", &name, &value));
  EXPECT_FALSE(split_header(": x", &name, &value));
  EXPECT_FALSE(split_header("A: " + std::string(1 << 20, 'x'), &name, &value));
}

TEST(HubHttp, FaultsOfTheNetworkSayWhatToDo) {
  const Error name =
      network_error(CURLE_COULDNT_RESOLVE_HOST, "no host", "https://hub.invalid/a/b");
  EXPECT_EQ(name.where, "hub.invalid");
  EXPECT_NE(name.hint.find("HF_ENDPOINT"), std::string::npos);
  const Error tls = network_error(CURLE_PEER_FAILED_VERIFICATION, "expired", "https://hub/");
  EXPECT_NE(tls.hint.find("SSL_CERT_FILE"), std::string::npos);
  EXPECT_EQ(trouble_of(CURLE_PEER_FAILED_VERIFICATION), Trouble::kTls);
  EXPECT_EQ(trouble_of(CURLE_COULDNT_CONNECT), Trouble::kUnreachable);
  EXPECT_EQ(trouble_of(CURLE_PARTIAL_FILE), Trouble::kCut);
  EXPECT_NE(network_error(CURLE_PARTIAL_FILE, "x\x1b", "http://h").what.find("x?"),
            std::string::npos);
}

TEST(HubRetry, WhatMayPassIsTriedAgain) {
  const auto answered = [](int status) { return Answer{.status = status}; };
  for (const int status : {408, 429, 500, 503}) EXPECT_TRUE(is_worth_retrying(answered(status)));
  for (const int status : {400, 401, 403, 404, 416})
    EXPECT_FALSE(is_worth_retrying(answered(status)));
  EXPECT_TRUE(is_worth_retrying({.trouble = Trouble::kCut}));
  for (const Trouble trouble :
       {Trouble::kUnreachable, Trouble::kTls, Trouble::kRefused, Trouble::kStopped})
    EXPECT_FALSE(is_worth_retrying({.trouble = trouble}));
}

TEST(HubRetry, TriesEndUnlessThereIsProgress) {
  const std::atomic<bool> stop{false};
  std::vector<std::string> said;
  Retry retry({.max_tries = 3, .first_wait_s = 0.001}, stop,
              [&](const std::string& text) { said.push_back(text); });
  const Answer cut{.trouble = Trouble::kCut, .error = {"cut", "", ""}};
  EXPECT_TRUE(retry.wait_after(cut));
  EXPECT_TRUE(retry.wait_after(cut));
  EXPECT_FALSE(retry.wait_after(cut));
  retry.progressed();
  EXPECT_TRUE(retry.wait_after(cut));
  EXPECT_EQ(said.back(), "cut; try 2 of 3 in 0.001 s");
  EXPECT_FALSE(retry.wait_after({.status = 429, .retry_after_s = 100000}));
}

TEST(HubRetry, AStopEndsTheWait) {
  const std::atomic<bool> stop{true};
  Retry retry({.first_wait_s = 100}, stop, [](const std::string&) {});
  EXPECT_FALSE(retry.wait_after({.status = 500}));
}

TEST(HubSettings, EndpointTokenAndStall) {
  ::setenv("HF_ENDPOINT", "https://mirror.example/hf//", 1);
  ::setenv("HF_TOKEN", " hf_x\r\n", 1);
  ::setenv("HF_HUB_OFFLINE", "yes", 1);
  ::setenv("HF_HUB_DOWNLOAD_TIMEOUT", "7", 1);
  ::setenv("HF_HUB_CACHE", "/c", 1);
  const Result<Settings> settings = read_settings();
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->endpoint, "https://mirror.example/hf");
  EXPECT_EQ(settings->token + " of " + settings->token_source, "hf_x of HF_TOKEN");
  EXPECT_EQ(settings->offline, "HF_HUB_OFFLINE=yes");
  EXPECT_EQ(settings->stall_s, 7);
  EXPECT_EQ(settings->cache, "/c");
  ::setenv("HF_ENDPOINT", "hub.example", 1);
  EXPECT_FALSE(read_settings());
  for (const char* name :
       {"HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_CACHE"})
    ::unsetenv(name);
}

}  // namespace
}  // namespace moxie::hub
