"""A router's UPnP, as a process in a home: `python gateway.py ADDRESS EXTERNAL_ADDRESS [refuses|silent]`.

Answers discovery and the calls that open and close ports (UPnP IGD 1). Says "ready", and a line for each change: "open
OUTSIDE ADDRESS INSIDE LEASE" or "close OUTSIDE".
"""

import re
import socket
import socketserver
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_WAN = "urn:schemas-upnp-org:service:WANIPConnection:1"
_DESCRIPTION = f"""<?xml version="1.0"?>
<root xmlns="urn:schemas-upnp-org:device-1-0"><specVersion><major>1</major><minor>0</minor></specVersion><device>
<deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType><deviceList><device>
<deviceType>urn:schemas-upnp-org:device:WANDevice:1</deviceType><serviceList><service>
<serviceType>urn:schemas-upnp-org:service:WANCommonInterfaceConfig:1</serviceType><controlURL>/common</controlURL>
<eventSubURL>/e</eventSubURL><SCPDURL>/s</SCPDURL></service></serviceList><deviceList><device>
<deviceType>urn:schemas-upnp-org:device:WANConnectionDevice:1</deviceType><serviceList><service>
<serviceType>{_WAN}</serviceType><controlURL>/control</controlURL><eventSubURL>/e</eventSubURL><SCPDURL>/s</SCPDURL>
</service></serviceList></device></deviceList></device></deviceList></device></root>"""


class Gateway(BaseHTTPRequestHandler):
    external = ""
    mode = ""
    taken: frozenset[int] = frozenset((4511,))
    """Ports that somebody else has."""

    def do_GET(self) -> None:
        self._answer(200, _DESCRIPTION)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        action = self.headers["SOAPAction"].strip('"').rpartition("#")[2]
        if self.mode == "silent":
            time.sleep(600)
        values = dict(re.findall(r"<(New\w+)>([^<]*)</", body))
        port = int(values.get("NewExternalPort") or 0)
        if action == "AddPortMapping" and (self.mode == "refuses" or port in self.taken):
            self._fault(718, "ConflictInMappingEntry")
        elif action == "AddPortMapping":
            inside = f"{values['NewInternalClient']} {values['NewInternalPort']}"
            print(f"open {port} {inside} {values['NewLeaseDuration']}", flush=True)
            self._result(action, "")
        elif action == "DeletePortMapping":
            print(f"close {port}", flush=True)
            self._result(action, "")
        elif action == "GetStatusInfo":
            self._result(action, "<NewConnectionStatus>Connected</NewConnectionStatus><NewUptime>9</NewUptime>")
        elif action == "GetExternalIPAddress":
            self._result(action, f"<NewExternalIPAddress>{self.external}</NewExternalIPAddress>")
        else:
            self._fault(401, "Invalid Action")

    def _result(self, action: str, content: str) -> None:
        self._envelope(200, f'<u:{action}Response xmlns:u="{_WAN}">{content}</u:{action}Response>')

    def _fault(self, code: int, words: str) -> None:
        detail = f"<errorCode>{code}</errorCode><errorDescription>{words}</errorDescription>"
        upnp = f'<UPnPError xmlns="urn:schemas-upnp-org:control-1-0">{detail}</UPnPError>'
        fault = f"<faultcode>s:Client</faultcode><faultstring>UPnPError</faultstring><detail>{upnp}</detail>"
        self._envelope(500, f"<s:Fault>{fault}</s:Fault>")

    def _envelope(self, code: int, content: str) -> None:
        envelope = '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>{}</s:Body></s:Envelope>'
        self._answer(code, '<?xml version="1.0"?>' + envelope.format(content))

    def _answer(self, code: int, content: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:  # the original looks up the name of the address, and there is nobody to ask
        socketserver.TCPServer.server_bind(self)


def discovery(address: str, port: int) -> None:
    """Answer whoever asks for a gateway."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("", 1900))
    group = struct.pack("4s4s", socket.inet_aton("239.255.255.250"), socket.inet_aton(address))
    listening.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    while True:
        question, asker = listening.recvfrom(2048)
        wanted = re.search(rb"(?im)^ST:\s*(\S+)", question)
        if wanted and b"InternetGatewayDevice:1" in wanted[1]:
            lines = ["HTTP/1.1 200 OK", "CACHE-CONTROL: max-age=120", "EXT:", f"ST: {wanted[1].decode()}"]
            lines += [f"USN: uuid:1::{wanted[1].decode()}", f"LOCATION: http://{address}:{port}/root.xml", "", ""]
            listening.sendto("\r\n".join(lines).encode(), asker)


if __name__ == "__main__":
    own, Gateway.external, *modes = sys.argv[1:]
    Gateway.mode = "".join(modes)
    server = Server((own, 0), Gateway)
    threading.Thread(target=discovery, args=(own, server.server_address[1]), daemon=True).start()
    print("ready", flush=True)
    server.serve_forever()
