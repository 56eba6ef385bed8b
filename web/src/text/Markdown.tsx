// Markdown, parsed by marked's lexer and rendered as elements. HTML is shown as text, links may use only http,
// https and mailto, and external images are not loaded: a transcript must not contact other hosts.
import { lexer, type Token, type Tokens } from "marked";
import { memo, type ReactNode } from "react";
import { clean, foldLines, safeLink } from "./clean";
import { Code, Truncated } from "./Text";

/** Longer texts are shown as plain text, because parsing them could take too long. */
const MARKDOWN_CHARS_MAX = 60_000;
const DEPTH_MAX = 24;

export const Markdown = memo(function Markdown({ text }: { text: string }) {
  return <Truncated text={text} show={(shown) => <div className="markdown">{render(clean(shown))}</div>} />;
});

function render(text: string): ReactNode {
  const hasHugeLine = text.length > 8_000 && /[^\n]{8000}/.test(text);
  if (text.length > MARKDOWN_CHARS_MAX || hasHugeLine) return <p className="pre-wrap">{foldLines(text)}</p>;
  try {
    return blocks(lexer(text, { gfm: true }), 0);
  } catch {
    return <p className="pre-wrap">{foldLines(text)}</p>;
  }
}

function blocks(tokens: Token[], depth: number): ReactNode[] {
  return tokens.map((token, index) => <Block key={index} token={token} depth={depth} />);
}

function Block({ token, depth }: { token: Token; depth: number }): ReactNode {
  if (depth > DEPTH_MAX) return <p className="pre-wrap">{token.raw}</p>;
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "code": {
      const language = (token as Tokens.Code).lang;
      return <Code code={token.text} {...(language ? { language } : {})} />;
    }
    case "heading": {
      // Headings of a transcript rank below the page's headings.
      const Tag = `h${Math.min(6, (token as Tokens.Heading).depth + 2)}` as "h3";
      return <Tag>{inline(token.tokens, token.text, depth)}</Tag>;
    }
    case "hr":
      return <hr />;
    case "blockquote":
      return <blockquote>{blocks(token.tokens ?? [], depth + 1)}</blockquote>;
    case "list":
      return <List list={token as Tokens.List} depth={depth} />;
    case "table":
      return <Table table={token as Tokens.Table} depth={depth} />;
    case "html":
      return <p className="pre-wrap">{token.raw}</p>;
    case "paragraph":
      return <p>{inline(token.tokens, token.text, depth)}</p>;
    case "text":
      return <span>{inline((token as Tokens.Text).tokens, (token as Tokens.Text).text, depth)}</span>;
    default:
      return <p className="pre-wrap">{token.raw}</p>;
  }
}

function List({ list, depth }: { list: Tokens.List; depth: number }) {
  const items = list.items.map((item, index) => (
    <li key={index} className={item.task ? "task" : ""}>
      {item.task && <span aria-hidden="true">{item.checked ? "☑ " : "☐ "}</span>}
      {blocks(item.tokens, depth + 1)}
    </li>
  ));
  return list.ordered ? <ol start={Number(list.start) || 1}>{items}</ol> : <ul>{items}</ul>;
}

function Table({ table, depth }: { table: Tokens.Table; depth: number }) {
  const cell = (cells: Tokens.TableCell[], Tag: "th" | "td") =>
    cells.map((each, index) => (
      <Tag key={index} className={each.align ? `align-${each.align}` : ""}>
        {inline(each.tokens, each.text, depth)}
      </Tag>
    ));
  return (
    <div className="table-box" tabIndex={0}>
      <table>
        <thead>
          <tr>{cell(table.header, "th")}</tr>
        </thead>
        <tbody>
          {table.rows.map((row, index) => (
            <tr key={index}>{cell(row, "td")}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inline(tokens: Token[] | undefined, text: string, depth: number): ReactNode {
  if (!tokens || depth > DEPTH_MAX) return text;
  return tokens.map((token, index) => <Inline key={index} token={token} depth={depth + 1} />);
}

const ENTITIES: Record<string, string> = {
  "&amp;": "&",
  "&lt;": "<",
  "&gt;": ">",
  "&quot;": '"',
  "&#39;": "'",
};

function plain(text: string): string {
  return text.replace(/&(amp|lt|gt|quot|#39);/g, (found) => ENTITIES[found] ?? found);
}

function Inline({ token, depth }: { token: Token; depth: number }): ReactNode {
  switch (token.type) {
    case "strong":
      return <strong>{inline(token.tokens, token.text, depth)}</strong>;
    case "em":
      return <em>{inline(token.tokens, token.text, depth)}</em>;
    case "del":
      return <del>{inline(token.tokens, token.text, depth)}</del>;
    case "codespan":
      return <code>{plain(token.text)}</code>;
    case "br":
      return <br />;
    case "link":
      return <Link link={token as Tokens.Link} depth={depth} />;
    case "image":
      return (
        <ExternalImage
          href={(token as Tokens.Image).href}
          text={`image: ${(token as Tokens.Image).text || "external"}`}
        />
      );
    case "escape":
      return plain(token.text);
    case "text": {
      const { tokens, text } = token as Tokens.Text;
      return tokens ? inline(tokens, text, depth) : plain(text);
    }
    default:
      return token.raw;
  }
}

function Link({ link, depth }: { link: Tokens.Link; depth: number }) {
  const href = safeLink(link.href);
  const content = inline(link.tokens, link.text, depth);
  if (!href) return <span title={clean(link.href).slice(0, 200)}>{content}</span>;
  return (
    <a href={href} target="_blank" rel="noopener noreferrer nofollow" title={href}>
      {content}
    </a>
  );
}

function ExternalImage({ href, text }: { href: string; text: string }) {
  const safe = safeLink(href);
  if (!safe) return <span>[{text}]</span>;
  return (
    <a href={safe} target="_blank" rel="noopener noreferrer nofollow" title={safe}>
      [{text}]
    </a>
  );
}
