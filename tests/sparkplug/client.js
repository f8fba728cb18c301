// Publishes births and data with Eclipse Tahu's sparkplug-client, as its documentation shows; run by
// tests/servers/senders.rs.
//
// Usage: node client.js BROKER_URL FIRST_TS_MS. Prints "asked" if a rebirth was requested, and "done".

const sparkplug = require("sparkplug-client");

const [url, first] = [process.argv[2], Number(process.argv[3])];
const client = sparkplug.newClient({
  serverUrl: url,
  username: "",
  password: "",
  groupId: "plant",
  edgeNode: "line1",
  clientId: "line1",
  version: "spBv1.0",
  publishDeath: true,
});

const nodeBirth = () => ({
  timestamp: first,
  metrics: [
    { name: "Node Control/Rebirth", type: "Boolean", value: false },
    { name: "Properties/Firmware", type: "String", value: "1.2" },
  ],
});
const deviceBirth = () => ({
  timestamp: first,
  metrics: [
    { name: "Inputs/temp", alias: 1, type: "Double", value: 21.5 },
    { name: "Inputs/count", alias: 2, type: "Int64", value: 7 },
    { name: "Inputs/negative", type: "Int32", value: -5 },
    { name: "Inputs/on", type: "Boolean", value: true },
    { name: "Inputs/light", type: "Float", value: 0.5 },
    { name: "Properties/Serial", type: "String", value: "A-7" },
  ],
});

client.on("error", (error) => {
  console.error(error);
  process.exit(1);
});
client.on("ncmd", (payload) => {
  if (payload.metrics.some((metric) => metric.name === "Node Control/Rebirth" && metric.value)) console.log("asked");
});
let born = false;
client.on("birth", () => {
  client.publishNodeBirth(nodeBirth());
  client.publishDeviceBirth("pump", deviceBirth());
  if (born) return;
  born = true;
  for (let n = 1; n <= 20; n++) {
    const timestamp = first + n * 1000;
    client.publishDeviceData("pump", {
      timestamp,
      metrics: [
        { alias: 1, timestamp, type: "Double", value: 21.5 + n },
        { name: "Inputs/negative", timestamp, type: "Int32", value: -n },
      ],
    });
  }
  // A node may compress.
  const timestamp = first + 21000;
  const metrics = [{ name: "Inputs/temp", timestamp, type: "Double", value: 99 }];
  client.publishDeviceData("pump", { timestamp, metrics }, { compress: true, algorithm: "GZIP" });
  // The connection ends after its messages are sent.
  setTimeout(() => {
    client.stop();
    console.log("done");
  }, 1000);
});
