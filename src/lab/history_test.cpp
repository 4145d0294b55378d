// Records are kept and found again; what cannot hold them is told of before and after.
#include "lab/history.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lab/testing/sample_record.h"
#include "lab/text_plot.h"

namespace moxie {
namespace {

class HistoryTest : public testing::Test {
 protected:
  HistoryTest() : path_(testing::TempDir() + "moxie_history.db") { std::filesystem::remove(path_); }
  ~HistoryTest() override { std::filesystem::remove(path_); }
  static std::string fault_of(const Result<History>& history) {
    return history ? "none" : history.error().message();
  }
  // As another program would.
  void run_sql(const char* sql) const {
    sqlite3* other = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &other), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(other, sql, nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(other);
    sqlite3_close(other);
  }
  std::string path_;
};

TEST_F(HistoryTest, KeepsRecordsInOrder) {
  for (const double factor : {1.0, 2.0}) {
    auto history = History::open_to_add(path_);
    ASSERT_TRUE(history.has_value()) << fault_of(history);
    Record record = sample_record();
    for (double& sample : record.results[0].samples) sample *= factor;
    ASSERT_TRUE(history->add(record).has_value());
  }
  auto history = History::open_to_read(path_);
  ASSERT_TRUE(history.has_value()) << fault_of(history);
  const auto points = history->points({.series = "tg32"});
  ASSERT_TRUE(points.has_value());
  ASSERT_EQ(points->size(), 2u);
  EXPECT_DOUBLE_EQ((*points)[0].median, 11);
  EXPECT_DOUBLE_EQ((*points)[1].median, 22);
  EXPECT_EQ((*points)[0].samples, 6);
  EXPECT_EQ((*points)[0].machine, "a GPU");
  EXPECT_EQ((*points)[0].switches, "--threads 2");
  EXPECT_EQ(history->points({})->size(), 4u);
}

TEST_F(HistoryTest, FindsByWhatIsAsked) {
  auto history = History::open_to_add(path_);
  ASSERT_TRUE(history.has_value());
  ASSERT_TRUE(history->add(sample_record()).has_value());
  const auto count = [&](const HistoryFilter& filter) { return history->points(filter)->size(); };
  EXPECT_EQ(count({.model = "embed"}), 2u);
  EXPECT_EQ(count({.model = "120b"}), 0u);
  EXPECT_EQ(count({.commit = "aaaa"}), 2u);
  EXPECT_EQ(count({.commit = "b"}), 0u);
  EXPECT_EQ(count({.kind = "score"}), 0u);
  EXPECT_EQ(count({.series = "' OR 1 --"}), 0u);
}

// What another program wrote there is no switch, and no fault.
TEST_F(HistoryTest, TakesAnyConfiguration) {
  auto history = History::open_to_add(path_);
  ASSERT_TRUE(history.has_value());
  ASSERT_TRUE(history->add(sample_record()).has_value());
  for (const char* configuration :
       {"7", "[1]", "{\"--threads\": 2}", "{\"--threads\": {\"source\": 3}}"}) {
    run_sql((std::string("UPDATE record SET json = '{\"configuration\": ") + configuration + "}'")
                .c_str());
    const auto points = history->points({.series = "tg32"});
    ASSERT_TRUE(points.has_value());
    EXPECT_EQ(points->at(0).switches, "") << configuration;
  }
  run_sql("UPDATE record SET json = 'no JSON'");
  EXPECT_FALSE(history->points({}).has_value());
}

TEST_F(HistoryTest, RefusesADamagedFile) {
  std::ofstream(path_) << std::string(4096, 'x');
  EXPECT_NE(fault_of(History::open_to_add(path_)).find("damaged"), std::string::npos);
  EXPECT_NE(fault_of(History::open_to_read(path_)).find("damaged"), std::string::npos);
}

TEST_F(HistoryTest, RefusesAnotherProgramsDatabase) {
  run_sql("CREATE TABLE birds(name TEXT)");
  EXPECT_NE(fault_of(History::open_to_add(path_)).find("another program"), std::string::npos);
}

TEST_F(HistoryTest, RefusesWhatIsNotThere) {
  EXPECT_NE(fault_of(History::open_to_read(path_)).find("cannot be opened"), std::string::npos);
  EXPECT_NE(fault_of(History::open_to_add("/no/such/folder/h.db")).find("cannot be opened"),
            std::string::npos);
}

TEST_F(HistoryTest, SaysThatItIsLocked) {
  auto history = History::open_to_add(path_);
  ASSERT_TRUE(history.has_value());
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN EXCLUSIVE", nullptr, nullptr, nullptr), SQLITE_OK);
  const Status status = history->add(sample_record());
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message().find("locked"), std::string::npos) << status.error().message();
  sqlite3_close(other);
  EXPECT_TRUE(history->add(sample_record()).has_value());  // it can be added once the lock is gone
  EXPECT_EQ(history->points({})->size(), 2u);
}

TEST_F(HistoryTest, RefusesAReadOnlyFile) {
  ASSERT_TRUE(History::open_to_add(path_).has_value());
  std::filesystem::permissions(path_, std::filesystem::perms::owner_read);
  if (::access(path_.c_str(), W_OK) == 0) GTEST_SKIP() << "this user may write every file";
  EXPECT_NE(fault_of(History::open_to_add(path_)).find("cannot be written"), std::string::npos);
}

TEST(TextPlot, DrawsFromTheLeastToTheGreatest) {
  const std::string plot = text_plot(std::vector<double>{1, 2, 3}, {.width = 5, .height = 3});
  EXPECT_EQ(plot,
            "           3 |    *\n"
            "           2 |  *\n"
            "           1 |*\n"
            "             +-----\n");
}

TEST(TextPlot, TakesOneValueAndNone) {
  EXPECT_EQ(text_plot({}), "");
  const std::string plot = text_plot(std::vector<double>{0}, {.width = 3, .height = 3});
  EXPECT_NE(plot.find("| *"), std::string::npos) << plot;
}

}  // namespace
}  // namespace moxie
