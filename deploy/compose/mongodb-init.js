// Run by mongosh in the one-shot service mongodb-init: makes the replica set and hourbucket's user. May be run again.
const fs = require("fs");
const secret = (name) => fs.readFileSync(`/run/secrets/${name}`, "utf8").trim();

const admin = db.getSiblingDB("admin");
admin.auth("root", secret("mongodb_root_password"));
try {
  admin.runCommand({ replSetGetStatus: 1 });
} catch (error) {
  if (error.codeName !== "NotYetInitialized") throw error;
  // Three members: three services like mongodb, and their names here.
  admin.runCommand({ replSetInitiate: { _id: "rs0", members: [{ _id: 0, host: "mongodb:27017" }] } });
  print("replica set rs0 made");
}
for (let tries = 0; !admin.runCommand({ hello: 1 }).isWritablePrimary; tries++) {
  if (tries > 120) throw new Error("mongodb does not become primary");
  sleep(500);
}

// readWrite is enough to run; dbAdmin is for a changed retention and for new versions.
const target = db.getSiblingDB("hourbucket");
const roles = [{ role: "readWrite", db: "hourbucket" }, { role: "dbAdmin", db: "hourbucket" }];
const user = { pwd: secret("mongodb_password"), roles };
if (target.getUser("hourbucket")) {
  target.updateUser("hourbucket", user);
} else {
  target.createUser({ user: "hourbucket", ...user });
  print("user hourbucket made");
}
