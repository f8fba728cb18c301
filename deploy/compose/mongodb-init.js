// mongosh runs this in the one-shot service mongodb-init: creates the replica set and hourbucket's user. May be run
// again.
const fs = require("fs");
const secret = (name) => fs.readFileSync(`/run/secrets/${name}`, "utf8").trim();

const admin = db.getSiblingDB("admin");
admin.auth("root", secret("mongodb_root_password"));
try {
  admin.runCommand({ replSetGetStatus: 1 });
} catch (error) {
  if (error.codeName !== "NotYetInitialized") throw error;
  // For three members: add three services like mongodb, and their names here.
  admin.runCommand({ replSetInitiate: { _id: "rs0", members: [{ _id: 0, host: "mongodb:27017" }] } });
  print("replica set rs0 made");
}
for (let tries = 0; !admin.runCommand({ hello: 1 }).isWritablePrimary; tries++) {
  if (tries > 120) throw new Error("mongodb does not become primary");
  sleep(500);
}

// readWrite is enough to run; a changed retention and new versions need dbAdmin.
const target = db.getSiblingDB("hourbucket");
const roles = [{ role: "readWrite", db: "hourbucket" }, { role: "dbAdmin", db: "hourbucket" }];
const user = { pwd: secret("mongodb_password"), roles };
if (target.getUser("hourbucket")) {
  target.updateUser("hourbucket", user);
} else {
  target.createUser({ user: "hourbucket", ...user });
  print("user hourbucket made");
}
